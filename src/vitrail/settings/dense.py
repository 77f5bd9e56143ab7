"""How images with masks and with objects are varied in training, and how large they are in evaluation."""

from collections.abc import Set
from typing import TYPE_CHECKING

from pydantic import Field, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.images import check_bounds
from vitrail.settings.section import ImageSize, Section, Side

if TYPE_CHECKING:
    from vitrail.data.dense.detection_view import DetectionView, FittedView
    from vitrail.data.dense.segmentation_view import SegmentationView


class SegmentAugmentationSettings(Section):
    """How training images and their masks are augmented."""

    short_side: Side | None = None
    """short side that an image is resized to before the ratio; null: that of the training picture"""
    long_side: Side | None = None
    """length that the long side does not go beyond before the ratio; null: four times the short side"""
    ratio: tuple[float, float] = (0.5, 2.0)
    """smallest and largest factor by which that size is changed by chance"""
    max_share: float = Field(default=0.75, gt=0.0, le=1.0)
    """share of a crop that one class may fill; 1: any crop is taken"""
    tries: PositiveInt = 10
    """crops that are tried for it, before the last one is taken"""
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of mirroring left to right"""
    brightness: float = Field(default=32.0, ge=0.0, le=255.0)
    """levels of 255 that are added or taken away at most"""
    contrast: float = Field(default=0.5, ge=0.0, lt=1.0)
    """strength of random changes of contrast: values are multiplied by 1 - strength to 1 + strength"""
    saturation: float = Field(default=0.5, ge=0.0, lt=1.0)
    """strength of random changes of saturation"""
    hue: float = Field(default=0.1, ge=0.0, le=0.5)
    """part of the circle of hues that colours are turned by at most"""
    distortion: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of each of these four changes; 0: colours stay as they are"""

    _check_range = field_validator("ratio")(check_bounds)

    def unused(self) -> Set[str]:
        """What is read only where a crop may be refused, or colours are changed."""
        of_tries = {"tries"} if self.max_share == 1.0 else set()
        return of_tries | (set() if self.distortion else {"brightness", "contrast", "saturation", "hue"})

    def build(self, *, image_size: ImageSize) -> "SegmentationView":
        """What makes a training picture of that size, and its mask, of an image."""
        from vitrail.data.dense.segmentation_view import SegmentationView

        return SegmentationView(image_size, self)


class DetectAugmentationSettings(Section):
    """How training images and their objects are augmented."""

    short_sides: tuple[Side, ...] = tuple(range(480, 801, 32))
    """lengths of which one is chosen for the short side"""
    max_side: Side = 1333
    """length that the long side does not go beyond"""
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of mirroring left to right"""
    crop: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability that a part of the image is cut out first"""
    crop_short_sides: tuple[Side, ...] = (400, 500, 600)
    """lengths of which one is chosen for the short side of the image that the part is cut from"""
    crop_sides: tuple[Side, Side] = (384, 600)
    """smallest and largest height and width of the part"""
    distortion: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of each change of brightness, contrast, saturation and hue; 0: colours stay as they are"""

    def unused(self) -> Set[str]:
        """What is read only where parts are cut out."""
        return set() if self.crop else {"crop_short_sides", "crop_sides"}

    @field_validator("short_sides", "crop_short_sides")
    @classmethod
    def check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse a list of lengths that has none."""
        if not lengths:
            raise PydanticCustomError("no_lengths", "give one length at least")
        return lengths

    _check_range = field_validator("crop_sides")(check_bounds)

    def build(self) -> "DetectionView":
        """What makes a training picture, and its objects, of an image."""
        from vitrail.data.dense.detection_view import DetectionView

        return DetectionView(self)


class FitSettings(Section):
    """How large images with objects are in evaluation."""

    short_side: Side = 800
    """length that the short side is resized to"""
    max_side: Side = 1333
    """length that the long side does not go beyond"""

    def build(self) -> "FittedView":
        """What makes a picture to evaluate on, whole, of an image."""
        from vitrail.data.dense.detection_view import FittedView

        return FittedView(short_side=self.short_side, max_side=self.max_side)
