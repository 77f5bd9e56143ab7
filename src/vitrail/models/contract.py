"""What every model takes and gives: Features, and the base class of the models, which answer for themselves."""

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitrail.layers.classifier import DistilledClassifier, PerClassClassifier
from vitrail.layers.grid import Grid
from vitrail.layers.pooling import ClassStage
from vitrail.models.config import ModelConfig, height_and_width
from vitrail.models.parameters import PARTS, find_parts, find_undecayed
from vitrail.models.resizing import resize_state

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HEAD = "head."  # how the names of a classifier's parameters begin
TRUNK = "trunk."  # how the names of a trunk's parameters begin, in a model with a head on a trunk


class Features(NamedTuple):
    """What a backbone says about an image, after the final normalisation."""

    summary: Tensor  # [batch, tokens, dim]: 1 token; 2 with a distillation token; one per class for per-class pooling
    patches: Tensor  # [batch, dim, height, width]
    levels: tuple[Tensor, ...] = ()  # maps after the blocks that were asked for, each [batch, dim, height, width]


class PoolingPass(NamedTuple):
    """An answer that can be differentiated by the patches that the model pools."""

    logits: Tensor  # [batch, classes]
    patches: Tensor  # in whatever layout the model has them
    to_map: Callable[
        [Tensor], Tensor
    ]  # something of the patches' shape -> its sums over channels, [batch, height, width]
    shares: Tensor | None = None  # [batch, classes]: how much of an image is each class, said by a model of its parts


@dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared before a model sees it."""

    crop_ratio: float = 0.875  # side of the centre crop over the resized short side
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name in ("crop_ratio", "mean", "std"):
            value = getattr(self, name)
            numbers = value if isinstance(value, (list, tuple)) else (value,)
            if not numbers or not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
                raise ValueError(f"{name} of the preprocessing is {str(value)[:80]}, which is no finite number")


def for_channels(statistic: Sequence[float], in_channels: int) -> tuple[float, ...]:
    """A mean or deviation per colour; images of other channels get the colours' average for each."""
    if len(statistic) == in_channels:
        return tuple(statistic)
    return (statistics.fmean(statistic),) * in_channels


class AnyModel(nn.Module):
    """What training, checkpoints and saved models ask of a model, whatever it takes and gives."""

    name: str = ""  # in the catalogue, or timm/NAME
    family: str = ""  # what a saved model is built by
    takes: ClassVar[str] = "images"  # what goes in, for messages

    @property
    def trunk(self) -> "AnyModel":
        """What learns beside the head: of a model with a head on a trunk that trunk, else the model itself."""
        return self

    @property
    def grid(self) -> Grid | None:
        """Rows and columns of the patches that the weights are tied to; None where they are not."""
        return None

    def describe(self) -> dict[str, Any]:
        """What the config.json of a saved model says of it: enough to build it again."""
        raise NotImplementedError

    def for_inference(self) -> "AnyModel":
        """The part that is saved and served, on the same weights."""
        return self

    def parameter_layers(self) -> dict[str, int]:
        """The layer of every parameter, by its name, from 0 at what goes in to the head: for layer-wise decay."""
        raise NotImplementedError

    def undecayed(self) -> set[str]:
        """Names of parameters without weight decay: norms, biases, tokens, positions, LayerScale and scalar gates."""
        return find_undecayed(self)

    def parts(self) -> dict[str, set[str]]:
        """For each of PARTS the names of its parameters: what can be trained alone."""
        return dict(zip(PARTS, find_parts(self), strict=True))

    def from_block(self, first: int) -> set[str]:
        """Names of the parameters of the blocks from one on, and of what comes after them."""
        raise NotImplementedError

    def recompute_blocks(self) -> None:
        """From now on recompute each block in the backward pass instead of keeping what is inside it."""
        raise NotImplementedError


class Model(AnyModel):
    """An image classifier: features, then a linear head.

    A family implements `features`; it may also implement `summarize`, the part of it the head needs, more cheaply. The
    other methods are what the rest of the library asks of a model, so that nobody has to know which kind it is.
    """

    config: ModelConfig
    blocks: Any  # the row of blocks, an nn.ModuleList, where the layers are ours
    class_stage: ClassStage | None
    head: nn.Module
    preprocessing: Preprocessing
    own_settings: Mapping[str, Any] | None = None  # what a user's own function made it of
    is_folded: bool = False  # set by fold
    reads_patches: bool = False  # whether its embedding is the mean of patches, for nothing has trained its class stage
    embeds_patches: bool = False  # whether an opaque model gives that mean as its embedding
    is_ours_alone: ClassVar[bool] = False  # whether no other library has names for its weights
    is_dense: bool = False  # whether answers are about places in an image and not about the image
    is_opaque: bool = False  # whether answers and embeddings are all that can be had of it: no layers, no maps
    uses_all_cores: bool = False  # whether one batch at a time is the fastest on a CPU: it divides the work itself
    foreign: ClassVar[str | None] = None  # the child whose layers and names of weights are another library's

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.class_stage = None
        self.preprocessing = Preprocessing()

    @classmethod
    def made(cls, config: ModelConfig) -> "Model":
        """A model of a config with initial weights; memory is taken once, by these."""
        with torch.device("meta"):
            model = cls(config)
        return materialize(model)

    # What it computes.

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits [batch, classes]; a model with a distillation head returns two of them when training."""
        return self.head(self.summarize(images))

    def summarize(self, images: Tensor) -> Tensor:
        """The summary tokens of `features`."""
        return self.features(images).summary

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        """Summary tokens and the map of patches; `levels` are indices of blocks whose maps are wanted too."""
        raise NotImplementedError

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """All that the model says in eval mode, in one pass: `logits` where it has a classifier, and the `embedding`.

        The embedding [batch, dim] is what galleries and probes read (`evaluation.features.Embedder`).
        """
        if isinstance(self.head, PerClassClassifier):
            features = self.features(images)
            return {"logits": self.head(features.summary), "embedding": features.patches.mean(dim=(2, 3))}
        if self.reads_patches:
            return {"embedding": self.features(images).patches.mean(dim=(2, 3))}
        summary = self.summarize(images)
        found = {"embedding": summary.flatten(1)}
        return {"logits": self.head(summary), **found} if self.config.num_classes else found

    def embedding_key(self, *, image_size: int | tuple[int, int], crop_ratio: float, interpolation: str) -> str | None:
        """The key of another model's embeddings that can be compared with this one's, of pictures seen so.

        That is so for an export that agrees with the model that it was made of; None: there is no such model.
        """
        return None

    def masked_patches(self, images: Tensor, *, masks: Tensor, token: Tensor) -> Tensor:
        """The patches of `features` with a token [stem_dim] in place of those, behind the stem, that are masked.

        Masks are bool [batch, rows, columns].
        """
        raise NotImplementedError

    def visible_patches(self, images: Tensor, *, kept: Tensor) -> Tensor:
        """The patches of `features` if no others than those at the places `kept` [batch, number] had been there.

        They come in that order, [batch, number, dim].
        """
        raise NotImplementedError

    def forward_whole(self, images: Tensor) -> Tensor:
        """The answer by every layer on every token, as papers count, even where `forward` skips what no one reads."""
        return self.head(self.features(images).summary)

    def answer_with_grid(self, images: Tensor) -> tuple[Tensor, Grid]:
        """What `forward` answers in eval mode, and the rows and columns of the patches the images were cut into."""
        grid = self.patch_grid(images.shape[2], images.shape[3])
        assert grid is not None, f"{type(self).__name__} does not tell its grid"
        return self(images), grid

    def pooling_pass(self, images: Tensor) -> PoolingPass:
        """The answer, followed by autograd from the last patches on; to be called inside `torch.no_grad`."""
        raise NotImplementedError

    def patch_grid(self, height: int, width: int) -> Grid | None:
        """Rows and columns of the patches of an image; None where only a forward pass tells."""
        return None

    def init_weights(self) -> None:
        """Set every parameter and buffer to the value training starts from."""
        if self.is_folded:
            raise ValueError("a folded model can't be initialised anew: fold the original again")
        initialize(self, std=getattr(self.config, "init_std", 0.02))

    def require_inside(self) -> None:
        """Refuse to be looked into where only answers come out."""
        if self.is_opaque:
            raise ValueError(
                f"this {self.name} is an export, of which answers and embeddings are all that can be had: give the run "
                "or model that was exported"
            )

    def check_images(self, images: Tensor) -> None:
        """Refuse what is no batch of images for this model."""
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

    # What it is.

    @property
    def trunk(self) -> "Model":
        """The backbone: of a model with a head on a trunk that trunk, else the model itself."""
        return self

    @property
    def image_size(self) -> int | tuple[int, int]:
        """Side of the images the model is made for, or height and width."""
        size = self.config.image_size
        return self.config.size if size is None else size

    @property
    def patch_size(self) -> int | None:
        """Side of a patch in pixels; None where there is no one size."""
        return None

    @property
    def takes_one_size(self) -> bool:
        """Whether images must be of the size the model is made for."""
        return False

    @property
    def stem_dim(self) -> int | None:
        """Width of a patch behind the stem, where patches can be masked; None where they can't."""
        return None

    @property
    def num_levels(self) -> int:
        """How many maps `features` can give beside the last one: blocks, or stages; 0 where it gives none."""
        return 0

    @property
    def takes_any_patches(self) -> bool:
        """Whether the blocks take any number of patches, so that masked ones can be left out."""
        return False

    @property
    def gives_embeddings(self) -> bool:
        """Whether it has an embedding of an image as a whole."""
        return not self.is_dense

    @property
    def has_two_heads(self) -> bool:
        """Whether there is a head for labels and one for a teacher's."""
        return isinstance(self._modules.get("head"), DistilledClassifier) and self.config.num_classes > 0

    def residual_blocks(self) -> Sequence[nn.Module]:
        """The blocks of the trunk that are ours, in the order of their use."""
        return ()

    def describe(self) -> dict[str, Any]:
        """What the config.json of a saved model says of it: enough to build it again."""
        return {
            "family": self.family,
            "name": self.name,
            "settings": dataclasses.asdict(self.config) if self.own_settings is None else dict(self.own_settings),
            "preprocessing": dataclasses.asdict(self.preprocessing),
        }

    # Other models with the same weights.

    def for_inference(self) -> "Model":
        """The part that is saved and served, on the same weights."""
        return self

    def rebuilt(self, **changes: Any) -> "Model":
        """A model of the same kind with some other settings, and initial weights."""
        model = type(self).made(dataclasses.replace(self.config, **changes))
        model.name, model.preprocessing = self.name, self.preprocessing
        return model

    def resized(self, image_size: int | tuple[int, int]) -> "Model":
        """A model of another image size with the same weights, in eval mode; itself where the size is its own.

        Weights that belong to a grid of patches are resampled (thesis 3.4.5).
        """
        if height_and_width(image_size) == self.config.size:
            return self
        if self.is_folded:
            raise ValueError("a folded model can't change its image size: resize the model that was folded")
        model = self.rebuilt(image_size=image_size)
        model.load_state_dict(self.state_for(model))
        model.reads_patches = self.reads_patches
        return model.eval()

    def state_for(self, model: "Model") -> dict[str, Tensor]:
        """The state dict in the shapes of a model that differs in its image size only."""
        state: dict[str, Tensor] = self.state_dict()
        if self.grid is None or model.grid is None:
            return state
        return resize_state(model, state, old=self.grid, new=model.grid)

    # What its weights are called.

    def head_prefixes(self) -> tuple[str, ...]:
        """How the names of all that belongs to the classes begin, which another classifier does not take over."""
        return (HEAD,)

    def classifier_layers(self) -> list[nn.Linear]:
        """The linear layers that make logits of the summary tokens, one for each head."""
        return [layer for layer in self.head.modules() if isinstance(layer, nn.Linear)]

    def timm_state(self) -> dict[str, Tensor] | None:
        """The weights of timm's model inside, under timm's names; None where the model is not timm's."""
        return None


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


def to_maps(patches: Tensor, grid: Grid) -> Tensor:
    """[batch, length, dim] -> [batch, dim, height, width], a view."""
    return patches.transpose(1, 2).unflatten(2, grid)


def materialize(model: Model) -> Model:
    """Give a model built on the meta device memory and initial weights on the default device."""
    device = torch.get_default_device()
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    model.init_weights()
    return model
