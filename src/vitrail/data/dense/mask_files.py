"""Masks in PNG files: values or colours of pixels made places in a list of classes."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from PIL import Image

from vitrail.data.decode import MAX_PIXELS, BrokenImageError
from vitrail.data.decode.opened import check_size
from vitrail.data.decode.pillow import open_with_pillow, pillow_at_work
from vitrail.data.decode.png import PNG_START, find_parts
from vitrail.data.dense.contract import IGNORED, Colour

UNKNOWN = 254  # in tables: no class has this place
_NUM_VALUES = 1 << 16
_MAX_NAMED = 5  # values that a message names
_LEVEL_STEPS = {2: 85, 4: 17}  # Pillow spreads grey of so many bits over the byte by these


class MaskCode:
    """What the values of a mask mean: by their numbers, or by colours.

    Values that `places` does not name are mistakes, but for 255, which means that nothing is known.
    """

    def __init__(self, places: Mapping[int, int] | None = None, *, colours: Mapping[Colour, int] | None = None) -> None:
        assert (places is None) != (colours is None)
        self.places = None if places is None else {IGNORED: IGNORED, **places}
        self.colours = colours

    @cached_property
    def _by_value(self) -> np.ndarray:
        """The place of every value: uint8 [65536]."""
        assert self.places is not None
        table = np.full(_NUM_VALUES, UNKNOWN, dtype=np.uint8)
        for value, place in self.places.items():
            table[value] = place
        return table

    @cached_property
    def _by_colour(self) -> np.ndarray:
        """The place of every colour, red as the highest byte: uint8 [16777216]."""
        assert self.colours is not None
        table = np.full(1 << 24, UNKNOWN, dtype=np.uint8)
        for (red, green, blue), place in self.colours.items():
            table[red << 16 | green << 8 | blue] = place
        return table

    def decode(self, data: bytes) -> np.ndarray:
        """The classes of a mask's pixels, uint8 [height, width]; a `BrokenImageError` where it holds what is none."""
        values, places = self.look_up(data)
        is_unknown = places == UNKNOWN
        if is_unknown.any():
            raise BrokenImageError(f"holds {self.name_values(values[is_unknown])}")
        return places

    def look_up(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        """What is stored, a number for each pixel, and what place it has, 254 where it is no class."""
        if self.colours is None:
            values = _as_values(read_stored(data))
            if values.dtype != np.uint8:
                return values, self._by_value[values]
            # Four times as fast as an index of NumPy's.
            places = values.tobytes().translate(self._by_value[:256].tobytes())
            return values, np.frombuffer(places, dtype=np.uint8).reshape(values.shape)
        values = _as_colours(read_stored(data, with_colours=True))
        return values, self._by_colour[values]

    def find_unknown(self, data: bytes) -> np.ndarray:
        """Which pixels of a mask hold what is no class: bool [height, width]."""
        return self.look_up(data)[1] == UNKNOWN

    def name_values(self, unknown: np.ndarray) -> str:
        """A few words about values that are no classes."""
        found = np.unique(unknown).tolist()
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        if self.colours is not None:
            named = ", ".join(f"#{value:06x}" for value in found[:_MAX_NAMED])
            return f"the colour{'s' * (len(found) > 1)} {named}{more}, which the table of classes has not"
        assert self.places is not None
        named = ", ".join(map(str, found[:_MAX_NAMED]))
        known = sorted(value for value in self.places if value != IGNORED)
        return (
            f"the value{'s' * (len(found) > 1)} {named}{more}, which {'are' if len(found) > 1 else 'is'} no class: "
            f"those are {known[0]} to {known[-1]}, and {IGNORED} where nothing is known"
        )


def read_stored(data: bytes, *, with_colours: bool = False) -> np.ndarray:
    """The values of a PNG as they are stored: [height, width], or [height, width, 3] of colours.

    A palette's numbers are the values, unless colours are asked for.
    """
    if not data.startswith(PNG_START):
        raise BrokenImageError("is no PNG: other formats may change the values of pixels")
    parts, _ = find_parts(data)
    stored = b"".join([PNG_START, *(part for kind, part in parts if kind != b"eXIf")])
    with pillow_at_work(stored, max_pixels=MAX_PIXELS):
        image = open_with_pillow(stored)
        check_size(image.height, image.width, max_pixels=MAX_PIXELS)
        if with_colours:
            return np.asarray(image if image.mode == "RGB" else image.convert("RGBA").convert("RGB"))
        bits, kind = stored[24], stored[25]
        values = np.asarray(_bare(image))
    return values // _LEVEL_STEPS[bits] if kind == 0 and bits in _LEVEL_STEPS else values


def _bare(image: Image.Image) -> Image.Image:
    """The image without its opacity, which says nothing about classes."""
    if image.mode in ("LA", "RGBA"):
        return image.getchannel("R") if image.mode == "RGBA" and _is_grey(image) else image.convert(image.mode[:-1])
    return image


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = (image.getchannel(name).tobytes() for name in "RGB")
    return red == green == blue


def _as_values(stored: np.ndarray) -> np.ndarray:
    if stored.ndim == 3:
        if (stored[..., :1] != stored).any():
            raise BrokenImageError("is in colours: write a table with the colour of each class (classes.csv)")
        stored = stored[..., 0]
    if stored.dtype.itemsize > 2:  # Pillow's way to give 16 bits
        stored = stored.astype(np.uint16)
    return stored.astype(np.uint8) if stored.dtype == np.bool_ else stored


def _as_colours(stored: np.ndarray) -> np.ndarray:
    wide = stored.astype(np.int32)
    return wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]
