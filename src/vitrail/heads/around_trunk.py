"""A model that learns around a trunk: what stands on it or beside it is for training, the trunk is what stays."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.classifier import PerClassClassifier
from vitrail.layers.grid import Grid
from vitrail.models.config import ModelConfig
from vitrail.models.contract import TRUNK, Features, Model


@dataclass(frozen=True, kw_only=True)
class AroundTrunkConfig:
    """What a model around a trunk is built from: the trunk's own config; a subclass adds the settings of its heads."""

    trunk_family: str
    trunk_name: str
    trunk: ModelConfig

    @property
    def num_classes(self) -> int:
        """Logits of an image; 0 where the model answers with something else."""
        return 0

    @property
    def image_size(self) -> int | tuple[int, int] | None:
        """Side of the images, or height and width."""
        return self.trunk.image_size

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.trunk.size

    @property
    def in_channels(self) -> int:
        """Channels of the images."""
        return self.trunk.in_channels


class AroundTrunk(Model):
    """A trunk without classifier, held in the module `trunk`, with whatever a way of training puts around it.

    A subclass calls `super().__init__(trunk)`, adds its modules, calls `self.follow_trunk()` when they are all there,
    and gives `forward`, which says what its objective asks for. It overrides `init_heads` where its modules have
    initial weights of their own, and `saved_trunk` where the trunk that is kept is not the one that gradients change
    (a teacher that follows it). Parameters that no gradient changes have `requires_grad` False. All else that training
    asks of a model is answered here: names of the trunk's parameters begin with `trunk.`, and all others are the
    part `head`, which learns at the rate of the trunk's last layer.
    """

    config: AroundTrunkConfig

    def __init__(self, trunk: Model, config: AroundTrunkConfig | None = None) -> None:
        check_trunk(trunk)
        super().__init__(
            config or AroundTrunkConfig(trunk_family=trunk.family, trunk_name=trunk.name, trunk=trunk.config)
        )
        self.name, self.preprocessing = trunk.name, trunk.preprocessing
        self._modules["trunk"] = trunk
        self.trunk_dim = summary_width(trunk)  # numbers that the trunk says of an image

    def follow_trunk(self) -> None:
        """Bring what stands around the trunk to its device, with initial weights; the end of a constructor."""
        self.to(next(self.trunk.parameters()).device)
        self.init_heads()

    def init_heads(self) -> None:
        """The part of `init_weights` that is not the trunk's, for a trunk that has its weights already."""

    def init_weights(self) -> None:
        self.trunk.init_weights()
        self.init_heads()

    @property
    def trunk(self) -> Model:
        trunk = self._modules["trunk"]  # where nn.Module would find it, were it not for this property
        assert isinstance(trunk, Model)
        return trunk

    def saved_trunk(self) -> Model:
        """The backbone that a run leaves: a model of its own, without classifier, that every verb reads."""
        return self.trunk

    def for_inference(self) -> Model:
        return self.saved_trunk()

    def trunk_vectors(self, images: Tensor) -> Tensor:
        """f(x): the trunk's summary tokens, side by side where there are several, [batch, dim of the trunk]."""
        return self.trunk.summarize(images).flatten(1)

    def summarize(self, images: Tensor) -> Tensor:
        return self.trunk.summarize(images)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        return self.trunk.features(images, levels=levels)

    @property
    def patch_size(self) -> int | None:
        return self.trunk.patch_size

    @property
    def num_levels(self) -> int:
        return self.trunk.num_levels

    @property
    def grid(self) -> Grid | None:
        return self.trunk.grid

    @property
    def takes_one_size(self) -> bool:
        return self.trunk.takes_one_size

    def patch_grid(self, height: int, width: int) -> Grid | None:
        return self.trunk.patch_grid(height, width)

    def check_images(self, images: Tensor) -> None:
        self.trunk.check_images(images)

    def residual_blocks(self) -> Sequence[nn.Module]:
        return self.trunk.residual_blocks()

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        """Itself at its own size; at another the trunk alone can be had: what stands around it is for training."""
        if self.trunk.resized(image_size) is self.trunk:
            return self
        raise ValueError(f"a {type(self).__name__} is trained at one size: resize its trunk, for_inference().resized")

    def parameter_layers(self) -> dict[str, int]:
        """The layer of every parameter; what stands around the trunk learns at the rate of its last layer."""
        layers = {f"{TRUNK}{name}": layer for name, layer in self.trunk.parameter_layers().items()}
        return {name: layers.get(name, max(layers.values())) for name, _ in self.named_parameters()}

    def undecayed(self) -> set[str]:
        return super().undecayed() | {f"{TRUNK}{name}" for name in self.trunk.undecayed()}

    def parts(self) -> dict[str, set[str]]:
        """For each of PARTS the names of its parameters in the trunk; all that stands around it is the head."""
        found = {part: {f"{TRUNK}{name}" for name in names} for part, names in self.trunk.parts().items()}
        return found | {"head": self._around_trunk()}

    def from_block(self, first: int) -> set[str]:
        return {f"{TRUNK}{name}" for name in self.trunk.from_block(first)} | self._around_trunk()

    def _around_trunk(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if not name.startswith(TRUNK)}

    def recompute_blocks(self) -> None:
        self.trunk.recompute_blocks()


def check_trunk(trunk: Model) -> None:
    """Refuse a trunk whose own classifier would be in the way."""
    if isinstance(trunk.head, PerClassClassifier):
        raise ValueError("a trunk has one summary token, not one a class: create it without per-class pooling")
    if trunk.config.num_classes:
        raise ValueError(
            f"the trunk has a classifier of {trunk.config.num_classes} classes: create it with num_classes=0, "
            "and set num_classes of what stands on it if a classifier is wanted"
        )


def summary_width(trunk: Model) -> int:
    """Numbers in the summary tokens of an image, found by looking at one that is empty."""
    parameter = next(trunk.parameters())
    was_training = trunk.training
    trunk.eval()
    try:
        with torch.no_grad():
            image = parameter.new_zeros(1, trunk.config.in_channels, *trunk.config.size)
            return trunk.summarize(image).flatten(1).shape[1]
    finally:
        trunk.train(was_training)
