"""Settings of models: what every config tells, the part that our families share, and their checks."""

import dataclasses
import difflib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from vitrail.settings.limits import MAX_SIDE


class Settings(Protocol):
    """Settings of any kind: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


CLASSIFIERS = ("linear", "mlp")
Kind = TypeVar("Kind", bound=Settings)


class ModelConfig(Settings, Protocol):
    """What the config of every model tells, a frozen dataclass."""

    @property
    def image_size(self) -> int | tuple[int, int] | None:
        """Side of the images, or height and width; None where it was left to the model."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""

    @property
    def in_channels(self) -> int:
        """Channels of the images."""

    @property
    def num_classes(self) -> int:
        """Logits of an image; 0 where the model answers with its embedding."""


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
        """Refuse a field that is not a number from 0 up to `below`, which is excluded."""
        value = getattr(self, name)
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < below:
            allowed = "a finite number of at least 0" if below == math.inf else f"in [0, {below:g})"
            raise ValueError(f"{name} must be {allowed}{' or None' if optional else ''}, not {value!r}")

    def check_classifier(self) -> None:
        """Refuse a classifier of another kind than "linear" where there are several tokens or heads."""
        self.check_choice("classifier", CLASSIFIERS)
        several = [name for name in ("distilled", "per_class_tokens") if getattr(self, name, False)]
        if several and getattr(self, "classifier", None) == "mlp":
            raise ValueError(f"classifier='mlp' reads one token: it can't be combined with {several[0]}")

    def check_choice(self, name: str, choices: Sequence[str]) -> None:
        if getattr(self, name) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class ImageConfig(CheckedSettings):
    """Settings that every family has."""

    image_size: int | tuple[int, int] = 224  # side, or height and width
    patch_size: int = 16
    in_channels: int = 3
    num_classes: int = 1000  # 0 gives the pooled embedding instead of logits
    classifier: str = "linear"  # or "mlp": two layers, batch norm and ReLU between them (thesis 2.4.6)
    dim: int = 384  # width of a patch
    depth: int = 12  # blocks of the trunk
    stem: str = "linear"
    drop_path: float = 0.0  # stochastic depth
    drop_path_schedule: str = "uniform"  # or "linear": from 0 at the first block to the full rate at the last
    init_std: float | None = (
        0.02  # initial deviation of linear layers; None: 1 / sqrt(inputs), better for narrow models
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", whole_sides(self.image_size))
        self.check_counts("patch_size", "in_channels", "dim", "depth")
        self.check_counts("num_classes", least=0)
        self.check_choice("drop_path_schedule", ("uniform", "linear"))
        self.check_classifier()
        if min(self.size) < self.patch_size:
            raise ValueError(f"image_size {self.image_size} must be at least one patch of {self.patch_size} pixels")
        self.check_number("drop_path", below=1.0)
        self.check_number("init_std", optional=True)

    def check_ratio(self, name: str) -> None:
        """Refuse a width of a hidden layer over dim that leaves it no channel."""
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
        """The rate of stochastic depth of each block."""
        if self.drop_path_schedule == "uniform" or self.depth == 1:
            return [self.drop_path] * self.depth
        return [self.drop_path * index / (self.depth - 1) for index in range(self.depth)]


def whole_sides(image_size: Any) -> int | tuple[int, int]:
    """An image size as Python's own numbers; JSON gives a list, numpy numbers of its own."""
    sides = image_size if isinstance(image_size, (tuple, list)) else (image_size, image_size)
    try:
        if any(isinstance(side, bool) for side in sides):
            raise TypeError
        height, width = map(operator.index, sides)
    except (TypeError, ValueError):
        raise ValueError(f"image_size must be a whole number or (height, width), not {image_size!r}") from None
    if max(height, width) > MAX_SIDE:
        raise ValueError(f"image_size {image_size!r} is too large: a side has at most {MAX_SIDE} pixels")
    return (height, width) if sides is image_size else height


def height_and_width(image_size: Any) -> tuple[int, int]:
    """The sides of an image that has at least one pixel."""
    size = whole_sides(image_size)
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"image_size must be a whole number or (height, width), not {image_size!r}")
    return height, width


def config_from_settings(kind: type[Kind], name: str, settings: dict[str, Any]) -> Kind:
    """A config of class `kind`; a setting it does not have is an error that offers the nearest names."""
    known = [field.name for field in dataclasses.fields(kind)]
    for setting in settings:
        if setting not in known:
            near = difflib.get_close_matches(setting, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"{name} has no setting {setting!r}: {hint}")
    return kind(**settings)
