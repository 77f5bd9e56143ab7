"""The pictures a model is trained on and tested with: made once of their settings and called for each image.

Both kinds are called as `transform(image, draws)` and give uint8 pixels [3, height, width], channels last in memory.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from torch import Tensor

from vitrail.data.checks import as_pair, as_plain_size, check_choice, check_crop_ratio
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
from vitrail.data.policies import ColourJitter, make_policy
from vitrail.settings.images import AugmentationSettings

# Every step has its own draws, keyed by one draw: what a step uses, or whether it is there, does not change the others.
_NUM_KEYS = 2**48


class Step(Protocol):
    """From uint8 pixels [3, height, width] to others of the same size; the draws decide every random choice."""

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor: ...


@dataclass(frozen=True)
class Augmentation:
    """A training picture: crop, flips, policy, colour jitter, erasing, in this order."""

    image_size: int | tuple[int, int]  # or (height, width)
    settings: AugmentationSettings = field(default_factory=AugmentationSettings)
    own_steps: tuple[Step | None, ...] | None = None  # behind crop and flips, in the place of those of the settings

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_plain_size(self.image_size))
        if self.settings.crop == "simple" and min(as_pair(self.image_size)) <= PADDING:
            raise ValueError(f"the simple crop mirrors {PADDING} pixels: the image size {self.image_size} is too small")

    def __call__(self, image: OpenedImage, draws: Draws) -> Tensor:
        """The picture that the draws make of the image."""
        return self.complete(image, self.plan((image.height, image.width), draws), draws)

    def complete(self, image: OpenedImage, crop: Crop, draws: Draws) -> Tensor:
        """The picture of a crop that was planned with the same draws."""
        pixels = crop.apply(image)
        for step in self.steps:
            key = draws.integer(_NUM_KEYS)
            if step is not None:
                pixels = step(pixels, Draws(key))
        return pixels

    def plan(self, size: tuple[int, int], draws: Draws) -> Crop:
        """Where from an image of this height and width the picture is taken; for masks, with the same draws."""
        settings, image_size = self.settings, as_pair(self.image_size)
        draws = Draws(draws.integer(_NUM_KEYS))
        is_flipped, is_upside_down = draws.chance(settings.flip), draws.chance(settings.vertical_flip)
        interpolation = choose_interpolation(settings.interpolation, draws)
        if settings.crop == "resized":
            crop = plan_resized_crop(size, draws, image_size=image_size, scale=settings.scale, ratio=settings.ratio)
        elif settings.crop == "simple":
            crop = plan_simple_crop(size, draws, image_size=image_size)
        else:
            crop = plan_centre_crop(size, image_size=image_size, crop_ratio=settings.crop_ratio)
        return replace(crop, interpolation=interpolation, is_flipped=is_flipped, is_upside_down=is_upside_down)

    @cached_property
    def steps(self) -> tuple[Step | None, ...]:
        """What happens to the pixels behind the crop: by the settings policy, jitter and erasing, each may be None."""
        if self.own_steps is not None:
            return self.own_steps
        settings = self.settings
        jitter = ColourJitter(*[settings.colour_jitter] * 3) if settings.colour_jitter else None
        erasing = RandomErasing(settings.erasing) if settings.erasing else None
        return make_policy(settings), jitter, erasing


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
