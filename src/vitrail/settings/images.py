"""How training images are varied and mixed."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from vitrail.settings.section import Section


class AugmentationSettings(Section):
    """How training images are varied."""

    crop: Literal["resized", "simple", "evaluation"] = "resized"
    """resized: RandomResizedCrop; simple: DeiT III's Simple Random Crop; evaluation: the centre"""
    scale: tuple[float, float] = (0.08, 1.0)
    """part of the image's area, for resized"""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """width over height, for resized"""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """filter of the resizing"""
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of mirroring left to right"""
    vertical_flip: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of turning upside down, for images without an up: from above, or through a microscope"""
    policy: Literal["three", "rand", "auto", "trivial"] | None = None
    """three: 3-Augment; rand: RandAugment; auto: AutoAugment; trivial: TrivialAugment"""
    magnitude: NonNegativeFloat = 9.0
    """of RandAugment"""
    magnitude_noise: NonNegativeFloat = 0.5
    """standard deviation of RandAugment's magnitude"""
    colour_jitter: NonNegativeFloat = 0.0
    """strength for brightness, contrast and saturation"""
    erasing: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of random erasing"""
    repeats: PositiveInt = 1
    """repeated augmentation: views of an image in a batch"""
    views: PositiveInt = 1
    """views of an image that are compared with each other, for the instance and triplet losses of embedding"""


class BlendSettings(Section):
    """How images and labels are mixed."""

    mixup: NonNegativeFloat = 0.0
    """alpha of mixup"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix"""
    switch: float = Field(default=0.5, ge=0.0, le=1.0)
    """how often CutMix where both are on"""
    probability: float = Field(default=1.0, ge=0.0, le=1.0)
    """how often anything is mixed"""
    per: Literal["batch", "pair"] = "batch"
    """one draw for all of a batch, or one for each pair"""
