"""What a recipe of detection says beside what every image recipe does."""

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.dense import DetectAugmentationSettings, FitSettings
from vitrail.settings.image_recipe import ImageEvaluationSettings, ImageRecipe
from vitrail.settings.section import Section

_NUM_LEVELS = 5  # of the feature pyramid network
AnchorSizes = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt]


class DetectorSection(Section):
    """What stands on the trunk."""

    head: Literal["mask_rcnn", "faster_rcnn"] = "mask_rcnn"
    """mask_rcnn: boxes and masks; faster_rcnn: boxes alone"""
    pyramid: Literal["blocks", "last", "chained", "simple"] = "blocks"
    """levels of the pyramid: maps behind four blocks; the last map at all levels, chained with one convolution less"""
    channels: PositiveInt = 256
    """width of the feature pyramid network"""
    anchor_sizes: AnchorSizes = (32, 64, 128, 256, 512)
    """side of the anchors in pixels, one for each level"""
    box_dim: PositiveInt = 1024
    """width of the two linear layers behind each box"""
    mask_dim: PositiveInt = 256
    """width of the convolutions of the mask head"""
    mask_depth: PositiveInt = 4
    """number of these convolutions"""
    train_proposals: PositiveInt = 2000
    """proposals of an image that are kept in training, and on each level before"""
    proposals: PositiveInt = 1000
    """proposals of an image that are kept in evaluation, and on each level before"""
    anchors_per_image: PositiveInt = 256
    """anchors of an image that the proposals learn from"""
    boxes_per_image: PositiveInt = 512
    """proposals of an image that the heads learn from"""
    score_threshold: float = Field(default=0.05, ge=0.0, lt=1.0)
    """probability below which nothing is said"""
    nms_threshold: float = Field(default=0.5, gt=0.0, le=1.0)
    """overlap (IoU) above which the less probable of two boxes of one class is dropped"""
    max_detections: PositiveInt = 100
    """objects that are said of an image, at most"""

    @field_validator("anchor_sizes", mode="before")
    @classmethod
    def check_anchors(cls, sizes: Any) -> Any:
        """Refuse another number of sides in one line."""
        if isinstance(sizes, (list, tuple)) and len(sizes) != _NUM_LEVELS:
            raise PydanticCustomError(
                "anchor_sizes", "there are five levels: name five sides in pixels, such as [32, 64, 128, 256, 512]"
            )
        return sizes

    def unused(self) -> Set[str]:
        """What is read only where there are masks."""
        return set() if self.head == "mask_rcnn" else {"mask_dim", "mask_depth"}


class DetectEvaluationSettings(ImageEvaluationSettings):
    """How the run is measured; `view` says how large the images are."""

    def unused(self) -> Set[str]:
        """What is read where images are cropped."""
        return {"image_size", "crop_ratio"}

    @model_validator(mode="after")
    def check_view(self) -> "DetectEvaluationSettings":
        """Refuse a crop: whole images are measured."""
        if self.image_size is not None or self.crop_ratio is not None:
            raise PydanticCustomError("no_crop", "whole images are measured: set view.short_side and view.max_side")
        return self


class DetectRecipe(ImageRecipe):
    """A recipe that finds objects."""

    task: str = "detect"
    detector: DetectorSection = DetectorSection()
    view: FitSettings = FitSettings()
    augmentation: DetectAugmentationSettings = DetectAugmentationSettings()  # type: ignore[assignment]
    evaluation: DetectEvaluationSettings = DetectEvaluationSettings()
