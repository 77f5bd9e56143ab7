"""Augmentation policies: 3-Augment, RandAugment, AutoAugment, TrivialAugment and colour jitter, on uint8 pixels.

A policy is called with pixels [3, height, width] and draws. The draws of an operation are the same in number whether
or not it is applied, so that one operation does not decide about the next.
"""

from dataclasses import dataclass
from typing import Protocol, get_args

from torch import Tensor

from vitrail.data import colour
from vitrail.data.checks import (
    check_choice,
    check_interpolation,
    check_number,
    check_probability,
    check_range,
    is_count,
    is_number,
)
from vitrail.data.draws import Draws
from vitrail.data.geometry import choose_interpolation
from vitrail.data.operations import interpret, interpret_wide, operate
from vitrail.settings.images import AugmentationSettings, AugmentPart

_JITTERED = ("brightness", "contrast", "saturation", "hue")

RAND_OPERATIONS = (
    "autocontrast",
    "equalise",
    "invert",
    "rotate",
    "posterise",
    "solarise",
    "solarise_add",
    "colour",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
TRIVIAL_OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "posterise",
    "solarise",
    "autocontrast",
    "equalise",
)
_NUM_TRIVIAL_LEVELS = 31

# The policy found on ImageNet (AutoAugment, arXiv 1805.09501, table 9): twice operation, probability, magnitude of 10.
AUTO_POLICY = (
    (("posterise", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarise", 0.6, 5), ("autocontrast", 0.6, 5)),
    (("equalise", 0.8, 8), ("equalise", 0.6, 3)),
    (("posterise", 0.6, 7), ("posterise", 0.6, 6)),
    (("equalise", 0.4, 7), ("solarise", 0.2, 4)),
    (("equalise", 0.4, 4), ("rotate", 0.8, 8)),
    (("solarise", 0.6, 3), ("equalise", 0.6, 7)),
    (("posterise", 0.8, 5), ("equalise", 1.0, 2)),
    (("rotate", 0.2, 3), ("solarise", 0.6, 8)),
    (("equalise", 0.6, 8), ("posterise", 0.4, 6)),
    (("rotate", 0.8, 8), ("colour", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalise", 0.6, 2)),
    (("equalise", 0.0, 7), ("equalise", 0.8, 8)),
    (("invert", 0.6, 4), ("equalise", 1.0, 8)),
    (("colour", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("colour", 1.0, 2)),
    (("colour", 0.8, 8), ("solarise", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 8)),
    (("shear_x", 0.6, 5), ("equalise", 1.0, 9)),
    (("colour", 0.4, 0), ("equalise", 0.6, 3)),
    (("equalise", 0.4, 7), ("solarise", 0.2, 4)),
    (("solarise", 0.6, 5), ("autocontrast", 0.6, 5)),
    (("invert", 0.6, 4), ("equalise", 1.0, 8)),
    (("colour", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalise", 0.8, 8), ("equalise", 0.6, 3)),
)


@dataclass(frozen=True, slots=True)
class ThreeAugment:
    """One of grey, solarise and Gaussian blur, each as likely (DeiT III, thesis 6.2.2). Jitter and flip are apart.

    With fewer parts it is one of those (thesis table 6.2).
    """

    threshold: int = 128  # of solarise: values from it on are inverted
    radius: tuple[float, float] = (0.1, 2.0)  # of the blur
    parts: tuple[AugmentPart, ...] = ("grey", "solarise", "blur")

    def __post_init__(self) -> None:
        for part in self.parts or (None,):
            check_choice("part of 3-Augment", part, get_args(AugmentPart))
        check_number("the threshold of solarise", self.threshold, low=0, high=256)
        check_range("the radius of the blur", self.radius)

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        part, radius = draws.choice(self.parts), draws.uniform(*self.radius)
        if part == "grey":
            return colour.grey(pixels)
        if part == "solarise":
            return colour.solarise(pixels, self.threshold)
        return colour.blur(pixels, radius) if part == "blur" else pixels


@dataclass(frozen=True, slots=True)
class RandAugment:
    """Some random operations, all of about one magnitude (arXiv 1909.13719), with the papers' additions to it.

    DeiT has "9/0.5", ResNet-strikes-back 7/0.5 and 6/0.5.
    """

    magnitude: float  # of 10
    noise: float  # standard deviation of the magnitude
    num_operations: int = 2
    probability: float = 0.5  # of each operation
    is_increasing: bool = True  # a higher magnitude changes the picture more, whatever the operation
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if not is_count(self.num_operations):
            raise ValueError(f"RandAugment can't make {self.num_operations!r} operations; give a whole number")
        check_probability("the probability of RandAugment", self.probability)
        check_interpolation(self.interpolation)

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        for _ in range(self.num_operations):
            name, is_applied = draws.choice(RAND_OPERATIONS), draws.chance(self.probability)
            level = min(10.0, max(0.0, draws.normal(self.magnitude, self.noise))) / 10
            size = (pixels.shape[1], pixels.shape[2])
            argument = interpret(name, level, draws, is_increasing=self.is_increasing, size=size)
            interpolation = choose_interpolation(self.interpolation, draws)
            if is_applied:
                pixels = operate(name, pixels, argument, interpolation=interpolation)
        return pixels


@dataclass(frozen=True, slots=True)
class AutoAugment:
    """One of 25 pairs of operations that were found on ImageNet (arXiv 1805.09501)."""

    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        for name, probability, magnitude in draws.choice(AUTO_POLICY):
            is_applied = draws.chance(probability)
            size = (pixels.shape[1], pixels.shape[2])
            argument = interpret(name, magnitude / 10, draws, is_increasing=False, size=size)
            if name == "posterise":  # the paper keeps 4 to 8 bits
                argument += 4
            interpolation = choose_interpolation(self.interpolation, draws)
            if is_applied:
                pixels = operate(name, pixels, argument, interpolation=interpolation)
        return pixels


@dataclass(frozen=True, slots=True)
class TrivialAugment:
    """One operation of any magnitude, in the wide space (arXiv 2103.10158)."""

    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        name = draws.choice(TRIVIAL_OPERATIONS)
        level = draws.integer(_NUM_TRIVIAL_LEVELS) / (_NUM_TRIVIAL_LEVELS - 1)
        argument = interpret_wide(name, level, draws)
        interpolation = choose_interpolation(self.interpolation, draws)
        return operate(name, pixels, argument, interpolation=interpolation)


Policy = ThreeAugment | RandAugment | AutoAugment | TrivialAugment


def make_policy(settings: AugmentationSettings) -> Policy | None:
    """The policy that the settings name."""
    if isinstance(settings.policy, tuple):
        return ThreeAugment(parts=settings.policy)
    if settings.policy == "rand":
        return RandAugment(settings.magnitude, settings.magnitude_noise)
    plain = {"three": ThreeAugment, "auto": AutoAugment, "trivial": TrivialAugment}
    return plain[settings.policy]() if settings.policy else None


@dataclass(frozen=True, slots=True)
class ColourJitter:
    """Brightness, contrast, saturation and hue changed in random order, each at most by its strength."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # a part of the circle, at most 0.5

    def __post_init__(self) -> None:
        for name in _JITTERED:
            limit = 0.5 if name == "hue" else float("inf")
            strength = getattr(self, name)
            if not (is_number(strength) and 0 <= strength <= limit):
                most = " to 0.5" if name == "hue" else " or more"
                raise ValueError(f"the jitter of {name} is {strength!r}; it can be 0{most}")

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        steps = []
        for name in draws.shuffled(_JITTERED):
            strength = getattr(self, name)
            low, high = (-strength, strength) if name == "hue" else (max(0.0, 1.0 - strength), 1.0 + strength)
            factor = draws.uniform(low, high)
            if strength > 0:
                steps.append((name, factor))
        return colour.enhance(pixels, steps) if steps else pixels


class _Operation(Protocol):
    """An operation on pixels, which keeps their size."""

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Sometimes:
    """An operation that happens with some probability."""

    operation: _Operation
    probability: float

    def __post_init__(self) -> None:
        check_probability("the probability of an operation", self.probability)

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        return self.operation(pixels, draws) if draws.chance(self.probability) else pixels
