"""How training images are varied and mixed."""

from collections.abc import Set
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.limits import MIN_CROP_RATIO
from vitrail.settings.section import ImageSize, Section

if TYPE_CHECKING:
    from vitrail.data.augment import Augmentation
    from vitrail.data.blend import Blend


AugmentPart = Literal["grey", "solarise", "blur", "identity"]
_SPELLINGS = {"gray": "grey", "grayscale": "grey", "greyscale": "grey", "solarize": "solarise"}


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Refuse a range that is not positive, or whose smaller end is not the first."""
    if not 0.0 < bounds[0] <= bounds[1]:
        raise PydanticCustomError("no_range", "give a smaller and a larger number, above 0")
    return bounds


def check_area(scale: tuple[float, float]) -> tuple[float, float]:
    """Refuse a crop of more area than the image has."""
    if scale[1] > 1.0:
        raise PydanticCustomError("no_range", "a crop is no larger than its image: give numbers of at most 1")
    return scale


class AugmentationSettings(Section):
    """How training images are augmented."""

    crop: Literal["resized", "simple", "evaluation"] = "resized"
    """way to crop; resized: RandomResizedCrop; simple: DeiT III's Simple Random Crop; evaluation: the centre"""
    scale: tuple[float, float] = (0.08, 1.0)
    """smallest and largest share of the image's area that a resized crop takes"""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """smallest and largest aspect ratio, width over height, of a resized crop"""
    crop_ratio: float = Field(default=0.875, ge=MIN_CROP_RATIO, le=1.0)
    """side of the centre crop over the short side of the resized image"""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """interpolation filter of the resizing; random: bicubic or bilinear, by chance"""
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of mirroring left to right"""
    vertical_flip: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of mirroring upside down"""
    policy: Literal["three", "rand", "auto", "trivial"] | tuple[AugmentPart, ...] | None = None
    """random operations: three (3-Augment), a list of its parts such as [grey, blur]; rand-, auto-, trivial-Augment"""
    magnitude: float = Field(default=9.0, ge=0.0, le=10.0)
    """strength of RandAugment's operations, from 0 to 10"""
    magnitude_noise: NonNegativeFloat = 0.5
    """standard deviation of RandAugment's magnitude"""
    colour_jitter: NonNegativeFloat = 0.0
    """strength of random changes of brightness, contrast and saturation"""
    erasing: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of random erasing"""
    repeats: PositiveInt = 1
    """views of an image in a batch (repeated augmentation)"""

    def unused(self) -> Set[str]:
        """What other crops and policies read."""
        of_crops = {"resized": {"scale", "ratio"}, "evaluation": {"crop_ratio"}}
        of_crop = {name for crop, names in of_crops.items() for name in names if crop != self.crop}
        return of_crop | ({"magnitude", "magnitude_noise"} if self.policy != "rand" else set())

    @field_validator("policy", mode="before")
    @classmethod
    def order_parts(cls, policy: object) -> object:
        """A list of parts in one order and spelling, so that the same parts make the same pictures."""
        if not isinstance(policy, (list, tuple)):
            return policy
        parts = [_SPELLINGS.get(part, part) if isinstance(part, str) else part for part in policy]
        known = get_args(AugmentPart)
        if not parts or any(part not in known for part in parts) or len(set(parts)) < len(parts):
            raise PydanticCustomError(
                "no_parts", "a list of parts has each of them once: grey, solarise, blur, identity"
            )
        return tuple(part for part in known if part in parts)

    _check_range = field_validator("scale", "ratio")(check_bounds)
    _check_area = field_validator("scale")(check_area)

    def build(self, *, image_size: ImageSize) -> "Augmentation":
        """What makes a training picture of that size of an image."""
        from vitrail.data.augment import Augmentation

        return Augmentation(image_size, self)


class CropSettings(Section):
    """How one of several crops of an image is made."""

    scale: tuple[float, float] = (0.4, 1.0)
    """smallest and largest share of the image's area that the crop takes"""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """smallest and largest aspect ratio, width over height, of the crop"""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """interpolation filter of the resizing; random: bicubic or bilinear, by chance"""
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of mirroring left to right"""
    jitter: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, Annotated[float, Field(ge=0.0, le=0.5)]] = (
        0.4,
        0.4,
        0.2,
        0.1,
    )
    """strengths of random changes of brightness, contrast, saturation and hue"""
    jitter_probability: float = Field(default=0.8, ge=0.0, le=1.0)
    """probability of these changes"""
    grey: float = Field(default=0.2, ge=0.0, le=1.0)
    """probability of a grey picture"""
    blur: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of a Gaussian blur, of a radius from 0.1 to 2 pixels"""
    solarise: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of inverting the values from 128 on"""

    _check_range = field_validator("scale", "ratio")(check_bounds)
    _check_area = field_validator("scale")(check_area)

    def build(self, *, image_size: ImageSize) -> "Augmentation":
        """What makes a crop of that size of an image, each operation behind the one before it."""
        from vitrail.data.augment import Augmentation
        from vitrail.data.policies import ColourJitter, Sometimes, ThreeAugment

        crop = AugmentationSettings(
            scale=self.scale, ratio=self.ratio, interpolation=self.interpolation, flip=self.flip
        )
        steps = (
            Sometimes(ColourJitter(*self.jitter), self.jitter_probability),
            Sometimes(ThreeAugment(parts=("grey",)), self.grey),
            Sometimes(ThreeAugment(parts=("blur",)), self.blur),
            Sometimes(ThreeAugment(parts=("solarise",)), self.solarise),
        )
        return Augmentation(image_size, crop, own_steps=steps)


class BlendSettings(Section):
    """How images and labels are mixed."""

    mixup: NonNegativeFloat = 0.0
    """alpha of mixup: the share is drawn from Beta(alpha, alpha); 0: no mixup"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix; 0: no CutMix"""
    switch: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of CutMix rather than mixup, where both are on"""
    probability: float = Field(default=1.0, ge=0.0, le=1.0)
    """probability that a batch, or a pair, is mixed at all"""
    per: Literal["batch", "pair"] = "batch"
    """batch: one random draw for all images of a batch, or of a group of it; pair: one for each pair of images"""
    group_size: PositiveInt | None = None
    """images of a batch that share a random draw, on any hardware: the papers' images per GPU; null: the whole batch"""

    def unused(self) -> Set[str]:
        """What is read only where something is mixed, both ways of mixing are on, or draws are for batches."""
        if not self.mixup and not self.cutmix:
            return {"switch", "probability", "per", "group_size"}
        of_pairs = {"group_size"} if self.per == "pair" else set()
        return of_pairs if self.mixup and self.cutmix else {"switch"} | of_pairs

    @field_validator("group_size")
    @classmethod
    def check_pairs(cls, size: int | None) -> int | None:
        """Refuse a group that would part a pair."""
        if size is not None and size % 2:
            raise PydanticCustomError("no_pairs", "give an even number: images are mixed in pairs")
        return size

    @property
    def is_mixing(self) -> bool:
        """Whether images are ever changed."""
        return self.probability > 0.0 and (self.mixup > 0.0 or self.cutmix > 0.0)

    def build(self, *, num_classes: int, smoothing: float) -> "Blend | None":
        """What mixes a batch, with the label smoothing of the objective; None where nothing is mixed."""
        from vitrail.data.blend import Blend

        return Blend(self, num_classes=num_classes, smoothing=smoothing) if self.is_mixing else None
