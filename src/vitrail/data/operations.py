"""The operations that augmentation policies are made of, by name, and what their magnitudes mean."""

from collections.abc import Callable

from torch import Tensor

from vitrail.data import colour, warp
from vitrail.data.draws import Draws

_COLOUR: dict[str, Callable[[Tensor, float], Tensor]] = {
    "identity": lambda pixels, _: pixels,
    "autocontrast": lambda pixels, _: colour.autocontrast(pixels),
    "equalise": lambda pixels, _: colour.equalise(pixels),
    "invert": lambda pixels, _: colour.invert(pixels),
    "posterise": lambda pixels, bits: colour.posterise(pixels, int(bits)),
    "solarise": colour.solarise,
    "solarise_add": lambda pixels, addition: colour.solarise_add(pixels, int(addition)),
    "colour": colour.saturate,
    "contrast": colour.change_contrast,
    "brightness": colour.brighten,
    "sharpness": colour.sharpen,
}
_WARPS: dict[str, Callable[[Tensor, float, str], Tensor]] = {
    "rotate": lambda pixels, degrees, filter: warp.rotate(pixels, degrees, interpolation=filter),
    "shear_x": lambda pixels, slope, filter: warp.shear_x(pixels, slope, interpolation=filter),
    "shear_y": lambda pixels, slope, filter: warp.shear_y(pixels, slope, interpolation=filter),
    "translate_x": lambda pixels, distance, filter: warp.translate_x(pixels, distance, interpolation=filter),
    "translate_y": lambda pixels, distance, filter: warp.translate_y(pixels, distance, interpolation=filter),
}
OPERATIONS = (*_COLOUR, *_WARPS)
_ENHANCEMENTS = frozenset({"colour", "contrast", "brightness", "sharpness"})
# Largest angle, slope, and distance as a part of the side, of RandAugment and AutoAugment; then of TrivialAugment,
# whose distance is in pixels.
_REACHES = {"rotate": 30.0, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 0.45, "translate_y": 0.45}
_WIDE_REACHES = {"rotate": 135.0, "shear_x": 0.99, "shear_y": 0.99, "translate_x": 32.0, "translate_y": 32.0}


def operate(name: str, pixels: Tensor, argument: float, *, interpolation: str) -> Tensor:
    """One operation; its argument is an angle, a slope, a distance in pixels, a factor, a threshold or bits."""
    if name in _COLOUR:
        return _COLOUR[name](pixels, argument)
    return _WARPS[name](pixels, argument, interpolation)


def interpret(name: str, level: float, draws: Draws, *, is_increasing: bool, size: tuple[int, int]) -> float:
    """The argument for a level of 0 to 1, as RandAugment means it in the papers' code.

    Increasing: a higher level changes the picture more. Otherwise factors run from 0.1 to 1.9, thresholds and bits
    upwards, so that some operations get weaker, as it was in the first public code.
    """
    sign = 1 if draws.chance(0.5) else -1
    if name in _REACHES:
        return sign * level * _REACHES[name] * _unit(name, size)
    if name in _ENHANCEMENTS:
        return max(0.1, 1.0 + sign * 0.9 * level) if is_increasing else 0.1 + 1.8 * level
    if name == "posterise":  # to 0 bits, says the code; a black picture teaches nothing, so one bit is left
        return 4 - int(4 * level) if is_increasing else int(4 * level)
    if name == "solarise":
        return 256 - int(256 * level) if is_increasing else int(256 * level)
    if name == "solarise_add":
        return int(110 * level)
    return 0.0


def interpret_wide(name: str, level: float, draws: Draws) -> float:
    """The argument for a level of 0 to 1 in TrivialAugment's wide space (arXiv 2103.10158)."""
    sign = 1 if draws.chance(0.5) else -1
    if name in _WIDE_REACHES:
        reach = sign * level * _WIDE_REACHES[name]
        return int(reach) if name.startswith("translate") else reach
    if name in _ENHANCEMENTS:
        return 1.0 + sign * 0.99 * level
    if name == "posterise":
        return 8 - round(6 * level)
    return 255 * (1.0 - level)  # the threshold of solarise


def _unit(name: str, size: tuple[int, int]) -> float:
    """What a level is multiplied with: the side, for distances."""
    return {"translate_x": size[1], "translate_y": size[0]}.get(name, 1)
