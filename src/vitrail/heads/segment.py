"""Segmentation: a trunk with a head that says a class for every cell of a grid."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.heads.around_trunk import AroundTrunk, AroundTrunkConfig
from vitrail.heads.followed_maps import follow_maps
from vitrail.heads.linear_segment import LinearSegmenter
from vitrail.heads.pyramid import KINDS, Pyramid, PyramidSettings, freeze_unread, look_at_levels
from vitrail.heads.upernet import AuxiliaryHead, UperNet
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import TRUNK, Features, Model, PoolingPass

HEADS = ("upernet", "linear")
_AUXILIARY_LEVEL = 2  # of the pyramid, from 0: the trunk's own resolution


@dataclass(frozen=True, kw_only=True)
class SegmentSettings(CheckedSettings):
    """Settings of what stands on the trunk."""

    num_classes: int
    kind: str = "upernet"  # one of HEADS
    channels: int = 512  # width of UperNet
    dropout: float = 0.1  # of channels before UperNet's classifier
    has_auxiliary: bool = True  # whether an FCN head learns beside UperNet
    pyramid: str = "blocks"  # kind of the pyramid that UperNet reads
    blocks: tuple[int, ...] | None = None  # blocks that the pyramid reads

    def __post_init__(self) -> None:
        self.check_choice("kind", HEADS)
        self.check_choice("pyramid", KINDS)
        self.check_counts("num_classes", "channels")
        self.check_number("dropout", below=1.0)
        self.check_flags("has_auxiliary")


@dataclass(frozen=True, kw_only=True)
class SegmentConfig(AroundTrunkConfig):
    """All that a segmentation model is built from."""

    head: SegmentSettings

    @property
    def num_classes(self) -> int:
        """Classes of a pixel."""
        return self.head.num_classes


class Segmented(NamedTuple):
    """What a segmentation model says about images when it is trained; logits are on the grids of the heads."""

    logits: Tensor  # [batch, classes, height, width]
    auxiliary: Tensor | None  # [batch, classes, height, width] of the auxiliary head


class SegmentModel(AroundTrunk):
    """A trunk, and UperNet on a pyramid of it or a linear head on its last map.

    In training mode it answers with all logits, as `Segmented`; in evaluation mode with those of the head, which are on
    a grid of its own: a quarter of the image's sides for UperNet, the patches for the linear head. Who wants a class
    for every pixel upsamples them (`evaluation/segmentation.py`).
    """

    config: SegmentConfig
    family = "segment"
    is_dense = True

    def __init__(self, trunk: Model, settings: SegmentSettings) -> None:
        super().__init__(
            trunk, SegmentConfig(trunk_family=trunk.family, trunk_name=trunk.name, trunk=trunk.config, head=settings)
        )
        self.pyramid: Pyramid | None = None
        self.auxiliary: AuxiliaryHead | None = None
        self.head: nn.Module
        if settings.kind == "linear":
            [(width, _)] = look_at_levels(trunk, ())
            self.head = LinearSegmenter(width, num_classes=settings.num_classes)
        else:
            self.pyramid = Pyramid(
                trunk, PyramidSettings(kind=settings.pyramid, blocks=settings.blocks, channels=settings.channels)
            )
            self.head = UperNet(
                self.pyramid.channels,
                channels=settings.channels,
                num_classes=settings.num_classes,
                dropout=settings.dropout,
            )
            if settings.has_auxiliary:
                width = self.pyramid.channels[_AUXILIARY_LEVEL]
                self.auxiliary = AuxiliaryHead(width, num_classes=settings.num_classes, dropout=settings.dropout)
        freeze_unread(trunk, self.pyramid)
        self.follow_trunk()

    def init_heads(self) -> None:
        for part in (self.pyramid, self.head, self.auxiliary):
            if part is not None:
                init_convolutions(part)

    def forward(self, images: Tensor) -> Tensor | Segmented:  # type: ignore[override]  # more answers in training
        return self._say(self._read(images))

    def _read(self, images: Tensor) -> Features:
        return self.trunk.features(images, levels=() if self.pyramid is None else self.pyramid.levels)

    def _say(self, features: Features) -> Tensor | Segmented:
        if self.pyramid is None:
            logits = self.head(features.patches)
            return Segmented(logits, None) if self.training else logits
        levels = self.pyramid(features)
        logits = self.head(levels)
        if not self.training:
            return logits
        return Segmented(logits, None if self.auxiliary is None else self.auxiliary(levels[_AUXILIARY_LEVEL]))

    def pooling_pass(self, images: Tensor) -> PoolingPass:
        """Scores of classes, followed from the maps that the head reads.

        The score of a class is the sum of its logits over the cells that are said to be of it (as in Seg-Grad-CAM,
        arXiv 2002.11434), or over all where none is.
        """
        maps = follow_maps(self._read(images))
        with torch.enable_grad():
            logits = self._say(maps.features)
            assert isinstance(logits, Tensor), "gradients are those of evaluation mode"
            is_said = nn.functional.one_hot(logits.argmax(dim=1), logits.shape[1]).movedim(-1, 1).to(logits.dtype)
            shares = is_said.mean(dim=(2, 3))
            is_asked = torch.where((shares > 0)[:, :, None, None], is_said, torch.ones_like(is_said))
            scores = (logits * is_asked).sum(dim=(2, 3))
        return PoolingPass(scores, maps.values, maps.to_map, shares=shares)

    def forward_whole(self, images: Tensor) -> Tensor:
        answer = self(images)
        return answer.logits if isinstance(answer, Segmented) else answer

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Logits on the grid of the head, [batch, classes, height, width]."""
        return {"logits": self.forward_whole(images)}

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        return self.trunk.features(images, levels=levels)

    def head_prefixes(self) -> tuple[str, ...]:
        """The classifiers: all else of the heads is of use for other classes too."""
        return ("head.classifier.", "auxiliary.classifier.")

    def for_inference(self) -> "SegmentModel":
        """The model of test time, on the same weights: without the auxiliary head."""
        if self.auxiliary is None:
            return self
        return self._with(self.trunk, replace(self.config.head, has_auxiliary=False), is_shared=True)

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        trunk = self.trunk.resized(image_size)
        return self if trunk is self.trunk else self._with(trunk, self.config.head, is_shared=False).eval()

    def _with(self, trunk: Model, settings: SegmentSettings, *, is_shared: bool) -> "SegmentModel":
        """The same heads on another trunk, with copied weights, or fewer of them on the same trunk, as they are."""
        needed = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        model = SegmentModel(trunk, settings)
        model.name, model.preprocessing = self.name, self.preprocessing
        if is_shared:
            model.pyramid, model.head = self.pyramid, self.head
        else:
            own = {name: value for name, value in self.state_dict().items() if not name.startswith(TRUNK)}
            model.load_state_dict({**own, **{f"{TRUNK}{name}": value for name, value in trunk.state_dict().items()}})
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(needed[name])
        return model.train(self.training)


def init_convolutions(part: nn.Module) -> None:
    """He's initial weights before a ReLU, a small deviation for classifiers, and torch's own for all else."""
    for name, layer in part.named_modules():
        if isinstance(layer, (nn.BatchNorm2d, nn.LayerNorm, nn.ConvTranspose2d)):
            layer.reset_parameters()
        elif isinstance(layer, nn.Conv2d) and name.endswith("classifier"):
            nn.init.normal_(layer.weight, std=0.01)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
