"""Checks that settings of augmentation share: each raises a ValueError of one line."""

from collections.abc import Sequence

INTERPOLATIONS = ("bicubic", "bilinear", "random")


def check_interpolation(interpolation: str) -> None:
    """One of the filters, or "random"."""
    check_choice("interpolation", interpolation, INTERPOLATIONS)


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """One of the names."""
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}; known are: {', '.join(choices)}")


def check_probability(what: str, probability: float) -> None:
    """A number from 0 to 1."""
    if not 0 <= probability <= 1:
        raise ValueError(f"{what} is {probability}; it goes from 0 to 1")


def check_range(what: str, bounds: tuple[float, float], *, low: float = 0.0, high: float = float("inf")) -> None:
    """Two numbers, the smaller first, both above `low` and at most `high`."""
    if len(bounds) != 2 or not low < bounds[0] <= bounds[1] <= high:
        limits = f"above {low}" if high == float("inf") else f"above {low}, at most {high}"
        raise ValueError(f"{what} is {tuple(bounds)}; give a smaller and a larger number, {limits}")


def check_crop_ratio(crop_ratio: float) -> None:
    """Above 0 and at most 1: a larger picture than the resized image would have empty borders."""
    if not 0 < crop_ratio <= 1:
        raise ValueError(f"the crop ratio is {crop_ratio}; it must be above 0 and at most 1")


def as_pair(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of a picture, from both or from one number for a square."""
    pair = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ValueError(f"the image size is {image_size!r}; give a whole number of pixels, or (height, width)")
    return pair[0], pair[1]
