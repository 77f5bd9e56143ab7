"""Mask R-CNN and Faster R-CNN on a trunk of one resolution: its pyramid, an FPN, and torchvision's detector."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import initLevelMapper

from vitrail.heads.around_trunk import AroundTrunk, AroundTrunkConfig
from vitrail.heads.float32_rcnn import Float32Anchors, Float32Boxes, Float32Masks, Float32Proposals
from vitrail.heads.followed_maps import follow_maps
from vitrail.heads.per_image_rcnn import BalancedSampler, PerImageHeads, PerImageProposals, Targets
from vitrail.heads.pyramid import KINDS, Pyramid, PyramidSettings, freeze_unread
from vitrail.heads.roi_pooling import RoiPool
from vitrail.layers.sample_draws import draws_of
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import Model, PoolingPass

HEADS = ("mask_rcnn", "faster_rcnn")
_RATIOS = (0.5, 1.0, 2.0)  # height over width of the anchors
_SCALES = {4: 1.0, 8: 2.0}  # of the finest level over the map of small patches: strides are 4, 8, 16 and 32 pixels
_NUM_LEVELS = 5  # four of the pyramid, and one that is pooled
_LEVELS = ("0", "1", "2", "3")  # that boxes are read from, as the FPN names them


@dataclass(frozen=True, kw_only=True)
class DetectorSettings(CheckedSettings):
    """Settings of what stands on the trunk; numbers that are not here are torchvision's."""

    num_classes: int  # beside the background
    head: str = "mask_rcnn"  # one of HEADS
    pyramid: str = "blocks"  # kind of the pyramid
    channels: int = 256  # width of the FPN
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)  # side of the anchors in pixels, one a level
    box_dim: int = 1024  # width of the two linear layers behind each box
    mask_dim: int = 256  # width of the convolutions of the mask head
    mask_depth: int = 4  # number of these convolutions
    train_proposals: int = 2000  # proposals of an image that are kept in training, and before on each level
    proposals: int = 1000  # the same in evaluation
    anchors_per_image: int = 256  # anchors that the proposals learn from
    boxes_per_image: int = 512  # proposals that the heads learn from
    score_threshold: float = 0.05  # probability below which nothing is said
    nms_threshold: float = 0.5  # overlap (IoU) above which the less probable of two boxes of a class is dropped
    max_detections: int = 100  # objects that are said of an image
    short_side: int = 800  # that images are resized to, if the long one stays within its limit, when they are asked
    max_side: int = 1333

    def __post_init__(self) -> None:
        self.check_choice("head", HEADS)
        self.check_choice("pyramid", KINDS)
        object.__setattr__(self, "anchor_sizes", tuple(self.anchor_sizes))
        if len(self.anchor_sizes) != _NUM_LEVELS or not all(
            type(size) is int and size > 0 for size in self.anchor_sizes
        ):
            raise ValueError(f"anchor_sizes must be {_NUM_LEVELS} whole numbers, one a level, not {self.anchor_sizes}")
        self.check_counts(
            "num_classes", "channels", "box_dim", "mask_dim", "mask_depth", "train_proposals", "proposals"
        )
        self.check_counts("anchors_per_image", "boxes_per_image", "max_detections", "short_side", "max_side")
        self.check_number("score_threshold")
        self.check_number("nms_threshold")

    @property
    def has_masks(self) -> bool:
        """Whether objects are answered with their masks."""
        return self.head == "mask_rcnn"


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(AroundTrunkConfig):
    """All that a detector is built from."""

    head: DetectorSettings

    @property
    def num_classes(self) -> int:
        """Classes of objects, without the background."""
        return self.head.num_classes


class Detections(NamedTuple):
    """What a detector says of one image, the most probable object first."""

    boxes: Tensor  # float32 [objects, 4]: left, top, right, bottom in pixels of what it was given
    scores: Tensor  # [objects]: probabilities of the classes
    labels: Tensor  # int64 [objects]: classes, from 0
    masks: Tensor | None  # [objects, 28, 28]: probabilities that parts of the box are of the object

    def cpu(self) -> "Detections":
        """The tensors on the CPU."""
        return Detections(*(None if part is None else part.cpu() for part in self))  # type: ignore[arg-type]


class Detector(AroundTrunk):
    """A trunk, its pyramid, an FPN, and torchvision's proposals and heads of boxes and, for Mask R-CNN, of masks.

    Images of a batch come padded to the largest of them. Each goes through the model at its own size, brought to the
    next multiple of the coarsest stride, together with those of the same size: what is said of an image, and what it
    costs, does not depend on the others. Batch normalisation of a trunk keeps its statistics, as is usual where a
    device has few images at a time.
    """

    config: DetectorConfig
    is_dense = True
    family = "detector"

    def __init__(self, trunk: Model, settings: DetectorSettings) -> None:
        super().__init__(
            trunk, DetectorConfig(trunk_family=trunk.family, trunk_name=trunk.name, trunk=trunk.config, head=settings)
        )
        channels = settings.channels
        self.pyramid = Pyramid(
            trunk,
            PyramidSettings(
                kind=settings.pyramid, channels=channels, norm="layer", scale=_SCALES.get(trunk.patch_size or 16, 4.0)
            ),
        )
        freeze_unread(trunk, self.pyramid)
        self.fpn = FeaturePyramidNetwork(list(self.pyramid.channels), channels, extra_blocks=LastLevelMaxPool())
        self.rpn = make_proposals(settings)
        self.roi_heads = make_heads(settings, strides=self.pyramid.strides)
        self.follow_trunk()
        self.train(self.training)

    def init_heads(self) -> None:
        for part in (self.pyramid, self.fpn, self.rpn, self.roi_heads):
            for layer in part.modules():
                if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.LayerNorm)):
                    layer.reset_parameters()
        # The rules of torchvision.
        for layer in _convolutions(self.fpn):
            _start(layer, nn.init.kaiming_uniform_, a=1)
        for layer in _convolutions(self.rpn):
            _start(layer, nn.init.normal_, std=0.01)
        for head in (self.roi_heads.mask_head, self.roi_heads.mask_predictor):
            for layer in [] if head is None else _convolutions(head):
                _start(layer, nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")

    def train(self, mode: bool = True) -> "Detector":
        """Training or evaluation mode; batch normalisation stays in the latter."""
        super().train(mode)
        for layer in self.trunk.modules():
            if isinstance(layer, _BatchNorm):
                layer.eval()
        return self

    def forward(self, images: Tensor, sizes: Tensor | None = None, targets: Targets | None = None) -> Any:
        """In training the losses by name, each [batch]; in evaluation the `Detections` of each image.

        Of images [batch, 3, height, width] the upper left `sizes` [batch, 2] are image; None: all of it. `targets` are
        what torchvision takes, with labels from 1.
        """
        num_images = len(images)
        shapes = [(int(height), int(width)) for height, width in _as_sizes(sizes, images)]
        groups: dict[tuple[int, int], list[int]] = {}
        for row, shape in enumerate(shapes):
            groups.setdefault(self.size_for(shape), []).append(row)
        answers: list[Any] = [None] * num_images
        draws = draws_of(self.rpn)
        for size, rows in groups.items():
            is_part = len(groups) > 1
            with draws.only(rows, num_rows=num_images) if draws and is_part else contextlib.nullcontext():
                found = self._judge(
                    _fit(images[rows] if is_part else images, size),
                    shapes=[shapes[row] for row in rows],
                    targets=None if targets is None else [targets[row] for row in rows],
                )
            for row, answer in zip(rows, found, strict=True):
                answers[row] = answer
        if not self.training:
            return answers
        return {name: torch.stack([answer[name] for answer in answers]) for name in answers[0]}

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Refused: torch.export can't record a suppression of boxes, and a trace holds the number of objects it saw."""
        raise ValueError(
            "a detector can't be exported: what it finds has another number of objects for every image, which graphs "
            "that torch records of torchvision's operators can't hold; ask the run itself"
        )

    def _judge(self, images: Tensor, *, shapes: list[tuple[int, int]], targets: Targets | None) -> list[Any]:
        """Losses by name, or detections, of each of some images of one size."""
        return self._find(images, self.feature_maps(images), shapes=shapes, targets=targets)

    def _find(
        self, images: Tensor, features: dict[str, Tensor], *, shapes: list[tuple[int, int]], targets: Targets | None
    ) -> list[Any]:
        proposals, losses = self.rpn(ImageList(images, shapes), features, targets)
        found, more = self.roi_heads(features, proposals, shapes, targets)
        if self.training:
            losses = {**losses, **more}
            return [{name: of_images[row] for name, of_images in losses.items()} for row in range(len(images))]
        return [
            Detections(one["boxes"], one["scores"], one["labels"] - 1, one["masks"][:, 0] if "masks" in one else None)
            for one in found
        ]

    def feature_maps(self, images: Tensor) -> dict[str, Tensor]:
        """The five levels of the FPN, finest first; in float32, whose digits the corners of anchors need."""
        return self._mix_levels(self.pyramid.read(self.trunk, images))

    def _mix_levels(self, levels: Sequence[Tensor]) -> dict[str, Tensor]:
        maps = self.fpn(dict(zip(_LEVELS, levels, strict=True)))
        return {name: level.float() for name, level in maps.items()}

    def pooling_pass(self, images: Tensor) -> PoolingPass:
        """Scores of classes, followed from the maps that the pyramid reads.

        The score of a class is the sum of the probabilities of its objects; `shares` are those of its most probable.
        """
        shape = images.shape[2], images.shape[3]
        size = self.size_for(shape)
        fitted = _fit(images, size)
        maps = follow_maps(self.trunk.features(fitted, levels=self.pyramid.levels))
        scores, shares = (images.new_zeros(len(images), self.config.num_classes) for _ in range(2))
        with torch.enable_grad():
            levels = self._mix_levels(self.pyramid(maps.features))
            found = self._find(fitted, levels, shapes=[shape] * len(images), targets=None)
            scores = scores + 0.0 * maps.values.sum()  # where nothing is found the map is zero everywhere
            scores = torch.stack([scores[row].index_add(0, one.labels, one.scores) for row, one in enumerate(found)])
        for row, one in enumerate(found):
            shares[row].scatter_reduce_(0, one.labels, one.scores.detach(), "amax")

        def to_map(product: Tensor) -> Tensor:
            """The part of the map that is image."""
            whole = maps.to_map(product)
            height, width = (
                max(1, round(cells * part / all_of_it))
                for cells, part, all_of_it in zip(whole.shape[1:], shape, size, strict=True)
            )
            return whole[:, :height, :width]

        return PoolingPass(scores, maps.values, to_map, shares=shares)

    def size_for(self, shape: tuple[int, int]) -> tuple[int, int]:
        """The height and width that an image of that shape is computed at."""
        if self.trunk.takes_one_size:
            size = self.trunk.config.size
            if shape[0] > size[0] or shape[1] > size[1]:
                raise ValueError(
                    f"{self.name} takes images of {size[0]} x {size[1]} only, and one has {shape[0]} x {shape[1]}: "
                    "make them smaller (augmentation), or take another model"
                )
            return size
        step = math.ceil(max(self.pyramid.strides))
        return -(-shape[0] // step) * step, -(-shape[1] // step) * step

    def for_inference(self) -> "Detector":
        return self

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        """Itself: images of any size are taken."""
        return self


def make_proposals(settings: DetectorSettings) -> PerImageProposals:
    """torchvision's region proposal network with our sampler."""
    anchors = Float32Anchors(tuple((size,) for size in settings.anchor_sizes), (_RATIOS,) * _NUM_LEVELS)
    kept = {"training": settings.train_proposals, "testing": settings.proposals}
    proposals = PerImageProposals(
        anchors,
        Float32Proposals(settings.channels, len(_RATIOS)),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=settings.anchors_per_image,
        positive_fraction=0.5,
        pre_nms_top_n=kept,
        post_nms_top_n=kept,
        nms_thresh=0.7,
    )
    proposals.fg_bg_sampler = BalancedSampler(settings.anchors_per_image, positive_share=0.5)
    return proposals


def make_heads(settings: DetectorSettings, *, strides: Sequence[float]) -> PerImageHeads:
    """torchvision's heads of boxes and masks with our sampler."""
    num_outputs, pool = settings.num_classes + 1, _make_pool(7, strides=strides)
    masks: dict[str, Any] = {}
    if settings.has_masks:
        masks = {
            "mask_roi_pool": _make_pool(14, strides=strides),
            "mask_head": MaskRCNNHeads(settings.channels, (settings.mask_dim,) * settings.mask_depth, 1),
            "mask_predictor": Float32Masks(settings.mask_dim, settings.mask_dim, num_outputs),
        }
    heads = PerImageHeads(
        pool,
        TwoMLPHead(settings.channels * math.prod(pool.output_size), settings.box_dim),
        Float32Boxes(settings.box_dim, num_outputs),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=settings.boxes_per_image,
        positive_fraction=0.25,
        bbox_reg_weights=None,
        score_thresh=settings.score_threshold,
        nms_thresh=settings.nms_threshold,
        detections_per_img=settings.max_detections,
        **masks,
    )
    heads.fg_bg_sampler = BalancedSampler(settings.boxes_per_image, positive_share=0.25)
    return heads


def _make_pool(side: int, *, strides: Sequence[float]) -> RoiPool:
    """RoIAlign whose scales are the pyramid's, where torchvision would guess them from the first image."""
    pool = RoiPool(list(_LEVELS), side, sampling_ratio=2)
    pool.scales = [1.0 / stride for stride in strides]
    finest, coarsest = (round(math.log2(stride)) for stride in (strides[0], strides[-1]))
    pool.map_levels = initLevelMapper(
        finest, coarsest, canonical_scale=pool.canonical_scale, canonical_level=pool.canonical_level
    )
    return pool


def _as_sizes(sizes: Tensor | None, images: Tensor) -> list[list[int]]:
    return [list(images.shape[-2:])] * len(images) if sizes is None else sizes.tolist()


def _fit(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The upper left of images, or images with zeros below and to the right."""
    images = images[:, :, : size[0], : size[1]]
    missing = size[1] - images.shape[3], size[0] - images.shape[2]
    return functional.pad(images, (0, missing[0], 0, missing[1])) if any(missing) else images


def _convolutions(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]


def _start(layer: Any, rule: Any, **options: Any) -> None:
    rule(layer.weight, **options)
    nn.init.zeros_(layer.bias)
