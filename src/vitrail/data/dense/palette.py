"""Colours for classes that have none of their own: far apart, and the same on every machine."""

from vitrail.data.dense.contract import Colour

_GOLDEN = 0.6180339887498949  # of the circle of hues, from one colour to the next: none comes near an earlier one soon
_TONES = ((0.90, 0.62), (0.55, 0.85), (0.95, 0.95), (0.70, 0.45))  # saturation and brightness, by turns


def make_colours(count: int) -> tuple[Colour, ...]:
    """A colour for each of so many classes."""
    return tuple(_make_colour(place) for place in range(count))


def _make_colour(place: int) -> Colour:
    hue = 6.0 * ((place * _GOLDEN) % 1.0)
    saturation, brightness = _TONES[place % len(_TONES)]
    pure = (min(max(abs((hue + shift) % 6.0 - 3.0) - 1.0, 0.0), 1.0) for shift in (0.0, 4.0, 2.0))
    red, green, blue = (round(255 * brightness * (1.0 - saturation * (1.0 - part))) for part in pure)
    return red, green, blue
