"""An image of which the header has been read, and what may be wrong with it."""

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor

MAX_PIXELS = 100_000_000
MAX_SIDE = 100_000  # pixels: decoders need seconds and gigabytes for strips of millions of rows or columns
MAX_BYTES_PER_PIXEL = 4  # where an image has as many pixels as are allowed; one of fewer may have more
DAMAGED = "is cut off or damaged"
_SHRINKS = (1, 2, 4, 8)
ORIENTATION_TAG = 0x0112
_FLIPS: dict[int, list[int]] = {2: [1], 3: [0, 1], 4: [0], 6: [1], 7: [0, 1], 8: [0]}  # 5 to 8 are transposed before


class BrokenImageError(ValueError):
    """The data is no image, or not a whole one. The message begins with a verb: put the name of the file before it."""


class UnreadFormatError(BrokenImageError):
    """The image is of a format that can't be read here."""


class ImageTooLargeError(BrokenImageError):
    """The image unfolds to more pixels or bytes than are allowed."""


@dataclass(frozen=True, eq=False)
class OpenedImage:
    """An image of which the header has been read; the pixels are decoded when they are asked for, each time anew."""

    height: int  # this and the width as a person sees the image, after its EXIF orientation
    width: int
    format: str  # "JPEG", "PNG" ..., or "pixels" for an array
    mode: str  # as stored, in Pillow's words: "RGB", "L", "CMYK", "P", "I;16" ...
    is_animated: bool  # has more frames or pages than the first, which is the one that is decoded
    _decode: Callable[[int], Tensor] = field(repr=False)  # shrink -> [height, width, 3]
    orientation: int = 1  # 1 to 8, as EXIF counts: how the pixels are turned from the way they are stored

    def pixels(self, *, shrink: int = 1) -> Tensor:
        """RGB, uint8 [3, height, width] in channels-last memory, which belongs to the caller.

        `shrink` (1, 2, 4 or 8) is a permission, not an order: a JPEG is then decoded at about 1/shrink of its size,
        which is faster from 4 on and leaves less to resize; other formats come in full.
        """
        if shrink not in _SHRINKS:
            raise ValueError(f"shrink is {shrink}; it can be 1, 2, 4 or 8")
        return self._decode(shrink).permute(2, 0, 1)


def check_size(height: int, width: int, *, max_pixels: int) -> None:
    """Refuse an image without pixels, or with too many."""
    if height <= 0 or width <= 0:
        raise BrokenImageError(f"has no pixels: its size is {width} x {height}")
    if height * width > max_pixels:
        raise ImageTooLargeError(describe_excess(height * width, limit=max_pixels))
    if max(height, width) > MAX_SIDE:
        raise ImageTooLargeError(f"is {width} x {height} pixels, more than the limit of {MAX_SIDE} a side")


def check_bytes(num_bytes: int, *, max_pixels: int) -> None:
    """Refuse an image that unfolds to too many bytes, be it of few pixels."""
    limit = MAX_BYTES_PER_PIXEL * max_pixels
    if num_bytes > limit:
        raise ImageTooLargeError(f"unfolds to {num_bytes / 1e6:,.4g} MB, more than the limit of {limit / 1e6:,.4g}")


def describe_excess(num_pixels: int, *, limit: int) -> str:
    """What to say of an image with too many pixels."""
    return f"has {num_pixels / 1e6:,.4g} megapixels, more than the limit of {limit / 1e6:,.4g}"


def orient(pixels: Tensor, orientation: int) -> Tensor:
    """[height, width, 3] turned as EXIF says, in contiguous memory."""
    if orientation >= 5:
        pixels = pixels.transpose(0, 1)
    if orientation in _FLIPS:
        pixels = pixels.flip(_FLIPS[orientation])
    return pixels.contiguous()


def read_orientation(exif: bytes) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none, or none that can be read."""
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[start : start + 4])
    if order is None:
        return 1
    with suppress(struct.error):
        directory = start + struct.unpack_from(order + "I", exif, start + 4)[0]
        (num_entries,) = struct.unpack_from(order + "H", exif, directory)
        for entry in range(num_entries):
            tag, _, _, value = struct.unpack_from(order + "HHIH", exif, directory + 2 + 12 * entry)
            if tag == ORIENTATION_TAG:
                return known_orientation(value)
    return 1


def known_orientation(value: object) -> int:
    """The value where EXIF knows it, else 1: upright."""
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
