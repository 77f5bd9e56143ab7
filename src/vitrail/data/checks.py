"""Checks that settings of augmentation share: each raises a ValueError of one line."""

import math
import operator
from collections.abc import Sequence
from numbers import Integral, Real

from vitrail.settings.limits import MAX_SIDE, MIN_CROP_RATIO

INTERPOLATIONS = ("bicubic", "bilinear", "random")


def check_interpolation(interpolation: str) -> None:
    """Refuse what is neither one of the filters nor "random"."""
    check_choice("interpolation", interpolation, INTERPOLATIONS)


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of the names."""
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}; known are: {', '.join(choices)}")


def is_number(value: object) -> bool:
    """Whether a value is a finite number, of Python or NumPy; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether a value is a whole number of 0 or more."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def check_number(what: str, value: float, *, low: float, high: float) -> None:
    """Refuse what is not a number from `low` to `high`."""
    if not (is_number(value) and low <= value <= high):
        raise ValueError(f"{what} is {value!r}; it goes from {low} to {high}")


def check_probability(what: str, probability: float) -> None:
    """Refuse what is not a number from 0 to 1."""
    check_number(what, probability, low=0, high=1)


def check_range(what: str, bounds: tuple[float, float], *, low: float = 0.0, high: float = float("inf")) -> None:
    """Refuse what is not two numbers, the smaller first, both above `low` and at most `high`."""
    is_pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2 and all(map(is_number, bounds))
    if not (is_pair and low < bounds[0] <= bounds[1] <= high):
        limits = f"above {low}" if high == float("inf") else f"above {low}, at most {high}"
        raise ValueError(f"{what} is {bounds!r}; give a smaller and a larger number, {limits}")


def check_crop_ratio(crop_ratio: float) -> None:
    """Refuse a ratio outside [0.01, 1]: a larger picture than the resized image would have empty borders."""
    if not (is_number(crop_ratio) and MIN_CROP_RATIO <= crop_ratio <= 1):
        raise ValueError(f"the crop ratio is {crop_ratio!r}; it must be at least {MIN_CROP_RATIO} and at most 1")


def as_pair(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of a picture, from both or from one number for a square."""
    sides = image_size if isinstance(image_size, (tuple, list)) else (image_size, image_size)
    try:
        height, width = map(operator.index, sides)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1 or any(isinstance(side, bool) for side in sides):
        raise ValueError(f"the image size is {image_size!r}; give a whole number of pixels, or (height, width)")
    if max(height, width) > MAX_SIDE:
        raise ValueError(f"the image size is {image_size!r}; a side has at most {MAX_SIDE} pixels")
    return height, width


def as_plain_size(image_size: int | tuple[int, int]) -> int | tuple[int, int]:
    """The size as Python's own numbers: one stays one, a list becomes a tuple."""
    pair = as_pair(image_size)
    return pair if isinstance(image_size, (tuple, list)) else pair[0]
