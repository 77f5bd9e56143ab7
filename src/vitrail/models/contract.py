"""What every model takes and gives: Features, the common part of the configs, and the base class of the models."""

import dataclasses
import difflib
import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitrail.layers.classifier import Classifier, DistilledClassifier, PerClassClassifier
from vitrail.layers.stem import Stem, make_stem

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Features(NamedTuple):
    """What a backbone says about an image, after the final normalisation."""

    summary: Tensor  # [batch, tokens, dim]: 1 token; 2 with a distillation token; one per class for per-class pooling
    patches: Tensor  # [batch, dim, height, width]
    levels: tuple[Tensor, ...] = ()  # maps after the blocks that were asked for, each [batch, dim, height, width]


@dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared before a model sees it."""

    crop_ratio: float = 0.875  # side of the centre crop over the resized short side
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


def for_channels(statistic: Sequence[float], in_channels: int) -> tuple[float, ...]:
    """A mean or deviation per colour; images of other channels get the colours' average for each."""
    if len(statistic) == in_channels:
        return tuple(statistic)
    return (statistics.fmean(statistic),) * in_channels


class CheckedSettings:
    """Checks of a config's fields; each failure is one line that names the field."""

    def check_counts(self, *names: str, least: int = 1) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")

    def check_flags(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")

    def check_number(self, name: str, *, below: float = math.inf, optional: bool = False) -> None:
        """A number from 0 up to `below`, which is excluded."""
        value = getattr(self, name)
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < below:
            allowed = "a finite number of at least 0" if below == math.inf else f"in [0, {below:g})"
            raise ValueError(f"{name} must be {allowed}{' or None' if optional else ''}, not {value!r}")

    def check_choice(self, name: str, choices: Sequence[str]) -> None:
        if getattr(self, name) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class ImageConfig(CheckedSettings):
    """Settings every family has."""

    image_size: int | tuple[int, int] = 224  # side, or height and width
    patch_size: int = 16
    in_channels: int = 3
    num_classes: int = 1000  # 0 gives the pooled embedding instead of logits
    dim: int = 384  # width of a patch
    depth: int = 12  # blocks of the trunk
    stem: str = "linear"
    drop_path: float = 0.0  # stochastic depth
    drop_path_schedule: str = "uniform"  # or "linear": from 0 at the first block to the full rate at the last
    init_std: float | None = 0.02  # of linear layers; None: 1 / sqrt(inputs), from which narrow models learn faster

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", whole_sides(self.image_size))
        self.check_counts("patch_size", "in_channels", "dim", "depth")
        self.check_counts("num_classes", least=0)
        self.check_choice("drop_path_schedule", ("uniform", "linear"))
        if min(self.size) < self.patch_size:
            raise ValueError(f"image_size {self.image_size} must be at least one patch of {self.patch_size} pixels")
        self.check_number("drop_path", below=1.0)
        self.check_number("init_std", optional=True)

    def check_ratio(self, name: str) -> None:
        """The width of a hidden layer over dim."""
        self.check_number(name)
        if int(self.dim * getattr(self, name)) < 1:
            raise ValueError(f"{name} {getattr(self, name)!r} of dim {self.dim} leaves no hidden channel: raise it")

    def check_heads(self, num_heads: int) -> None:
        if self.dim % num_heads:
            divisors = [count for count in range(1, self.dim + 1) if self.dim % count == 0]
            near = sorted(divisors, key=lambda count: abs(count - num_heads))[:3]
            raise ValueError(
                f"num_heads {num_heads} does not divide dim {self.dim}: try {', '.join(map(str, sorted(near)))}"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def drop_path_rates(self) -> list[float]:
        """The rate of each block."""
        if self.drop_path_schedule == "uniform" or self.depth == 1:
            return [self.drop_path] * self.depth
        return [self.drop_path * index / (self.depth - 1) for index in range(self.depth)]


class Model(nn.Module):
    """An image classifier: features, then a linear head.

    A family implements `features`; it may also implement `summarize`, the part of it the head needs, more cheaply.
    """

    config: Any
    blocks: Any  # the trunk, where the family has one
    head: nn.Module
    preprocessing: Preprocessing
    name: str = ""  # in the catalogue, or timm/NAME
    family: str = ""
    own_settings: Mapping[str, Any] | None = None  # what a user's own function made it of
    is_folded: bool = False  # set by fold

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.preprocessing = Preprocessing()

    def forward(self, images: Tensor) -> Any:
        """Logits [batch, classes]; a model with a distillation head returns two of them when training."""
        return self.head(self.summarize(images))

    def summarize(self, images: Tensor) -> Tensor:
        """The summary tokens of `features`."""
        return self.features(images).summary

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        """Summary tokens and the map of patches; `levels` are indices of blocks whose maps are wanted too."""
        raise NotImplementedError

    def init_weights(self) -> None:
        """Set every parameter and buffer to the value training starts from."""
        if self.is_folded:
            raise ValueError("a folded model can't be initialised anew: fold the original again")
        initialize(self, std=getattr(self.config, "init_std", 0.02))

    def check_images(self, images: Tensor) -> None:
        if not isinstance(images, Tensor):
            raise ValueError(
                f"expected a tensor of images [batch, {self.config.in_channels}, height, width], "
                f"got {type(images).__name__}"
            )
        if images.ndim != 4 or images.shape[1] != self.config.in_channels:
            raise ValueError(
                f"expected images of shape [batch, {self.config.in_channels}, height, width], got {list(images.shape)}"
            )
        if not images.is_floating_point():
            raise ValueError("images must be floating point: scale to [0, 1] and normalise them")

    def check_levels(self, levels: Sequence[int]) -> list[int]:
        """Indices of blocks, with negative ones counted from the end."""
        return level_indices(levels, count=self.config.depth, of="blocks")


def level_indices(levels: Sequence[int], *, count: int, of: str) -> list[int]:
    """Indices into `count` things called `of`, with negative ones counted from the end."""
    try:
        indices = [operator.index(level) for level in levels]
    except TypeError:
        raise ValueError(f"levels must be a list of indices of {of}, e.g. (0, -1), not {levels!r}") from None
    for index in indices:
        if not -count <= index < count:
            raise ValueError(f"level {index} is not one of the {count} {of}")
    return [index % count for index in indices]


def whole_sides(image_size: Any) -> int | tuple[int, int]:
    """An image size as Python's own numbers; JSON gives a list, numpy numbers of its own."""
    sides = image_size if isinstance(image_size, (tuple, list)) else (image_size, image_size)
    try:
        if any(isinstance(side, bool) for side in sides):
            raise TypeError
        height, width = map(operator.index, sides)
    except (TypeError, ValueError):
        raise ValueError(f"image_size must be a whole number or (height, width), not {image_size!r}") from None
    return (height, width) if sides is image_size else height


def height_and_width(image_size: Any) -> tuple[int, int]:
    """The sides of an image that has at least one pixel."""
    size = whole_sides(image_size)
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"image_size must be a whole number or (height, width), not {image_size!r}")
    return height, width


@runtime_checkable
class _SetsItself(Protocol):
    """A layer with a rule for its own parameters."""

    def reset_parameters(self) -> None: ...


@runtime_checkable
class _FinishesInit(Protocol):
    """A layer with a rule for its parts, applied after theirs."""

    def finish_init(self) -> None: ...


def initialize(module: nn.Module, *, std: float | None = 0.02) -> None:
    """Linear layers as the official models start them, or with a deviation of their own; other parts by their rules."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=part.in_features**-0.5 if std is None else std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, _SetsItself):
            part.reset_parameters()
    for part in module.modules():
        if isinstance(part, _FinishesInit):
            part.finish_init()


def stem_of(config: ImageConfig) -> Stem:
    """The stem a config asks for; an image that can't be cut is refused here, before anything is built."""
    stem = make_stem(config.stem, in_channels=config.in_channels, dim=config.dim, patch_size=config.patch_size)
    stem.grid(*config.size)
    return stem


def head_of(config: ImageConfig, *, distilled: bool = False, per_class: bool = False) -> nn.Module:
    """The linear classifier that fits the summary tokens of a config."""
    kind = PerClassClassifier if per_class else DistilledClassifier if distilled else Classifier
    return kind(config.dim, num_classes=config.num_classes)


def to_maps(patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """[batch, length, dim] -> [batch, dim, height, width], a view."""
    return patches.transpose(1, 2).unflatten(2, grid)


def config_from_settings(kind: type, name: str, settings: dict[str, Any]) -> Any:
    """A config of class `kind`; a setting it does not have is an error that offers the nearest names."""
    known = [field.name for field in dataclasses.fields(kind)]
    for setting in settings:
        if setting not in known:
            near = difflib.get_close_matches(setting, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"{name} has no setting {setting!r}: {hint}")
    return kind(**settings)


def materialize(model: Model) -> Model:
    """Give a model built on the meta device memory and initial weights on the default device."""
    device = torch.get_default_device()
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    model.init_weights()
    return model
