"""The pictures a model is trained on and tested with: settings that are checked once and called for each image.

Both kinds are called as `transform(image, draws)` and give uint8 pixels [3, height, width], channels last in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from vitrail.data.checks import (
    as_pair,
    as_plain_size,
    check_choice,
    check_crop_ratio,
    check_interpolation,
    check_probability,
    check_range,
)
from vitrail.data.decode import OpenedImage
from vitrail.data.draws import Draws
from vitrail.data.erasing import RandomErasing
from vitrail.data.geometry import (
    PADDING,
    Crop,
    choose_interpolation,
    plan_centre_crop,
    plan_resized_crop,
    plan_simple_crop,
)
from vitrail.data.policies import POLICIES, ColourJitter, Policy

_CROPS = ("resized", "simple", "evaluation")
# Every step has its own draws, keyed by one draw: what a step uses, or whether it is there, does not change the others.
_NUM_KEYS = 2**48
Step = Policy | ColourJitter | RandomErasing


@dataclass(frozen=True)
class Augmentation:
    """A training picture: crop, flips, policy, colour jitter, erasing, in this order."""

    image_size: int | tuple[int, int] = 224  # or (height, width)
    crop: str = "resized"  # RandomResizedCrop, "simple" (DeiT III's Simple Random Crop) or "evaluation" (the centre)
    scale: tuple[float, float] = (0.08, 1.0)  # of "resized": part of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of "resized": width over height
    crop_ratio: float = 0.875  # of "evaluation"
    interpolation: str = "bicubic"  # "bilinear", or "random": one of both
    flip: float = 0.5  # probability of mirroring left to right
    vertical_flip: float = 0.0  # probability of turning upside down
    policy: str | Policy | None = None  # "three", "rand", "auto", "trivial", or one of them with its own settings
    colour_jitter: float | Sequence[float] = 0.0  # strength, or those of brightness, contrast, saturation[, hue]
    erasing: float | RandomErasing = 0.0  # probability, or more settings

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_plain_size(self.image_size))
        if isinstance(self.colour_jitter, list):
            object.__setattr__(self, "colour_jitter", tuple(self.colour_jitter))
        check_choice("crop", self.crop, _CROPS)
        if self.crop == "simple" and min(as_pair(self.image_size)) <= PADDING:
            raise ValueError(f"the simple crop mirrors {PADDING} pixels: the image size {self.image_size} is too small")
        check_range("the scale of the crop", self.scale, high=1.0)
        check_range("the ratio of the crop", self.ratio)
        check_crop_ratio(self.crop_ratio)
        check_interpolation(self.interpolation)
        check_probability("the probability of a flip", self.flip)
        check_probability("the probability of a vertical flip", self.vertical_flip)
        if not isinstance(self.policy, (*POLICIES.values(), type(None))):
            check_choice("policy", self.policy, tuple(POLICIES))
        _ = self._steps  # making them checks their settings

    def __call__(self, image: OpenedImage, draws: Draws) -> Tensor:
        """The picture that the draws make of the image."""
        pixels = self.plan((image.height, image.width), draws).apply(image)
        for step in self._steps:
            key = draws.integer(_NUM_KEYS)
            if step is not None:
                pixels = step(pixels, Draws(key))
        return pixels

    def plan(self, size: tuple[int, int], draws: Draws) -> Crop:
        """Where from an image of this height and width the picture is taken; for masks, with the same draws."""
        draws = Draws(draws.integer(_NUM_KEYS))
        is_flipped, is_upside_down = draws.chance(self.flip), draws.chance(self.vertical_flip)
        interpolation = choose_interpolation(self.interpolation, draws)
        image_size = as_pair(self.image_size)
        if self.crop == "resized":
            crop = plan_resized_crop(size, draws, image_size=image_size, scale=self.scale, ratio=self.ratio)
        elif self.crop == "simple":
            crop = plan_simple_crop(size, draws, image_size=image_size)
        else:
            crop = plan_centre_crop(size, image_size=image_size, crop_ratio=self.crop_ratio)
        return replace(crop, interpolation=interpolation, is_flipped=is_flipped, is_upside_down=is_upside_down)

    @cached_property
    def _steps(self) -> tuple[Step | None, ...]:
        """What happens to the pixels behind the crop: policy, jitter, erasing, or None."""
        policy = POLICIES[self.policy]() if isinstance(self.policy, str) else self.policy
        return policy, self._make_jitter(), self._make_erasing()

    def _make_jitter(self) -> ColourJitter | None:
        if isinstance(self.colour_jitter, Sequence):
            if len(self.colour_jitter) not in (3, 4):
                raise ValueError(
                    f"the colour jitter is {self.colour_jitter!r}; give one number, or brightness, contrast, "
                    "saturation and, if you like, hue"
                )
            return ColourJitter(*self.colour_jitter)
        jitter = ColourJitter(*[self.colour_jitter] * 3)
        return jitter if self.colour_jitter else None

    def _make_erasing(self) -> RandomErasing | None:
        if isinstance(self.erasing, RandomErasing):
            return self.erasing
        erasing = RandomErasing(probability=self.erasing)
        return erasing if self.erasing else None


@dataclass(frozen=True)
class EvaluationView:
    """A test picture: the short side resized, the centre cut out, exactly as in the papers' evaluations."""

    image_size: int | tuple[int, int] = 224  # or (height, width)
    crop_ratio: float = 0.875  # picture over resized image
    interpolation: str = "bicubic"  # or "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_plain_size(self.image_size))
        check_crop_ratio(self.crop_ratio)
        check_choice("interpolation of a test picture", self.interpolation, ("bicubic", "bilinear"))

    def __call__(self, image: OpenedImage, draws: Draws | None = None) -> Tensor:
        """The picture; nothing about it is random."""
        return self.plan((image.height, image.width)).apply(image)

    def plan(self, size: tuple[int, int]) -> Crop:
        """Where from an image of this height and width the picture is taken."""
        crop = plan_centre_crop(size, image_size=as_pair(self.image_size), crop_ratio=self.crop_ratio)
        return replace(crop, interpolation=self.interpolation)
