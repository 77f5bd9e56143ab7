"""PNG: its parts are checked, and what is no pixels is left out, before it is decoded."""

import struct
import zlib
from dataclasses import replace
from functools import partial

from vitrail.data.decode.opened import DAMAGED, BrokenImageError, OpenedImage, check_size
from vitrail.data.decode.pillow import decode_with_pillow, open_other

PNG_START = b"\x89PNG\r\n\x1a\n"
_PARTS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND"))
_PLAIN_PARTS = frozenset((b"IHDR", b"IDAT", b"IEND"))
_PLAIN_MODES = {(8, 0, 0, 0, 0): "L", (8, 2, 0, 0, 0): "RGB"}  # bits, kind of colour, compression, filter, interlacing


def open_png(data: bytes, *, max_pixels: int) -> OpenedImage:
    """Open a PNG; a plain header of eight bits of grey or colour is read here, which is faster than Pillow."""
    parts, is_animated = find_parts(data)
    pixels_alone = b"".join([PNG_START, *(part for _, part in parts)])
    first, header = parts[0]
    if first == b"IHDR" and len(header) == 25 and all(kind in _PLAIN_PARTS for kind, _ in parts):
        width, height, *form = struct.unpack_from(">II5B", header, 8)
        mode = _PLAIN_MODES.get(tuple(form))
        if mode is not None:
            check_size(height, width, max_pixels=max_pixels)
            # torchvision's decoder is faster, but ends the process when pixels are missing.
            decode = partial(decode_with_pillow, pixels_alone, 1)
            return OpenedImage(height, width, "PNG", mode, is_animated, decode)
    return replace(open_other(pixels_alone, max_pixels=max_pixels), is_animated=is_animated)


def find_parts(data: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The parts that make the pixels, with their kinds, and whether the file is animated.

    Texts and colour profiles are where bombs hide and where Pillow gives up; the first frame is the plain image. The
    check sums are compared here because Pillow does not look at those of the pixels.
    """
    parts, is_animated, place = [], False, len(PNG_START)
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        start, end = place, place + 12 + length
        if end > len(data):
            break
        place = end
        is_animated = is_animated or kind == b"acTL"
        if kind not in _PARTS:
            continue
        if zlib.crc32(memoryview(data)[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            if kind == b"eXIf":
                continue
            raise BrokenImageError(f"is damaged: wrong check sum in its part {kind.decode()}")
        parts.append((kind, data[start:end]))
        if kind == b"IEND":
            return parts, is_animated
    raise BrokenImageError(DAMAGED)
