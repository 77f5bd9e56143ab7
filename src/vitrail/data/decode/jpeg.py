"""JPEG: by torchvision where it can, at a part of its size by Pillow, and never half a picture."""

import re
import struct
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vitrail.data.decode.library_lines import LIBRARY_LINES
from vitrail.data.decode.opened import DAMAGED, BrokenImageError, OpenedImage, check_size, orient, read_orientation
from vitrail.data.decode.pillow import open_with_pillow, pillow_at_work, to_tensor

JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_MID_GREY = [128, 128, 128]  # what a JPEG decoder paints where the data has run out
_MAX_SCANS = 100  # of a progressive JPEG: usual are about ten; every scan costs a pass over the whole picture
_MAX_SCANS_OF_LARGEST = 15  # of an image with as many pixels as are allowed
_JPEG_SCAN = b"\xff\xda"
_JPEG_MARKER = re.compile(rb"\xff[^\x00-\xbf\xd0-\xd8\xff]")  # what ends a scan, and is more than a byte of it
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the three others are tables
_JPEG_STANDALONE = frozenset(range(0xD0, 0xD9)) | {0x00, 0x01}  # markers that no segment follows
_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # by the number of components


class _JpegHeader(NamedTuple):
    height: int
    width: int
    num_components: int
    orientation: int
    is_plain: bool  # Huffman-coded grey or colour, baseline or progressive: what torchvision decodes
    has_many_scans: bool  # or may have
    scan: int  # where the first scan begins


def open_jpeg(data: bytes, *, max_pixels: int) -> OpenedImage:
    """A JPEG, of which the segments before the pixels are read here."""
    header = _read_jpeg_header(data)
    height, width = header.height, header.width
    check_size(height, width, max_pixels=max_pixels)
    if header.orientation >= 5:
        height, width = width, height
    mode = _JPEG_MODES[header.num_components]
    decode = partial(_decode_jpeg, data, header, max_pixels)
    return OpenedImage(height, width, "JPEG", mode, False, decode, header.orientation)


def _read_jpeg_header(data: bytes) -> _JpegHeader:
    """Walk the segments up to the first scan."""
    place, orientation, frame = 2, 1, None
    while place + 4 <= len(data):
        if data[place] != 0xFF:  # stray bytes
            place = data.find(b"\xff", place)
            if place < 0:
                break
            continue
        code = data[place + 1]
        if code == 0xFF or code in _JPEG_STANDALONE:
            place += 1 if code == 0xFF else 2
            continue
        begin, end = place + 4, place + 2 + (data[place + 2] << 8 | data[place + 3])
        if code == 0xDA and frame:
            bits, height, width, num_components, kind = frame
            if bits != 8 or num_components not in _JPEG_MODES:
                raise BrokenImageError(f"is a JPEG of {num_components} x {bits} bits, which cannot be decoded")
            is_plain = kind <= 0xC2 and num_components != 4
            has_many_scans = kind not in (0xC0, 0xC1) or begin >= len(data) or data[begin] != num_components
            return _JpegHeader(height, width, num_components, orientation, is_plain, has_many_scans, begin)
        if code in (0xDA, 0xD9):
            break
        if code in _JPEG_FRAMES and begin + 6 <= len(data):
            frame = (*struct.unpack_from(">BHHB", data, begin), code)
        elif code == 0xE1 and orientation == 1 and data.startswith(b"Exif\0\0", begin):
            orientation = read_orientation(data[begin:end])
        place = end
    raise BrokenImageError(DAMAGED)


def _decode_jpeg(data: bytes, header: _JpegHeader, max_pixels: int, shrink: int) -> Tensor:
    decode = _find_torchvision_decoder() if shrink == 1 and header.is_plain else None
    if data.rfind(JPEG_END, header.scan) < 0:
        raise BrokenImageError(DAMAGED)
    if header.has_many_scans:
        _check_scans(data, header, max_pixels=max_pixels)
    if decode is None:
        with pillow_at_work(data):
            pixels = to_tensor(_open_draft(data, shrink=shrink))
    else:
        try:
            with LIBRARY_LINES:
                pixels = decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, False).permute(1, 2, 0)
        except RuntimeError as error:
            raise BrokenImageError(DAMAGED) from error
    # A file that was cut off and then closed with an end marker (or hit by a stray one) passes every decoder. It is
    # found here if whole blocks are missing; a progressive file that lacks only its finer scans remains unnoticed.
    is_suspect = header.num_components == 4 or pixels.numpy()[-1, -1].tolist() == _MID_GREY
    if is_suspect and _ends_early(data, header):
        raise BrokenImageError(DAMAGED)
    return orient(pixels, header.orientation)


def _check_scans(data: bytes, header: _JpegHeader, *, max_pixels: int) -> None:
    """Refuse a JPEG whose scans, each a pass over all pixels, would take minutes."""
    limit = min(_MAX_SCANS, _MAX_SCANS_OF_LARGEST * max_pixels // (header.height * header.width))
    if data.count(_JPEG_SCAN, header.scan) < limit:  # of its kind, every scan shows these two bytes
        return
    num_scans, _ = _walk_scans(data, header)
    if num_scans > limit:
        raise BrokenImageError(f"is a JPEG of {header.width} x {header.height} pixels in more than {limit} scans")


def _walk_scans(data: bytes, header: _JpegHeader) -> tuple[int, int]:
    """How many scans there are up to the end marker, and where that is; what other segments hold does not count."""
    num_scans, place = 1, header.scan
    while found := _JPEG_MARKER.search(data, place):
        code = data[found.start() + 1]
        if code == JPEG_END[1]:
            return num_scans, found.start()
        num_scans += code == _JPEG_SCAN[1]
        place = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    return num_scans, len(data)


@cache
def _find_torchvision_decoder() -> Callable[[Tensor, int, bool], Tensor] | None:
    """torchvision's JPEG decoder (encoded bytes, 3 for RGB, whether to apply EXIF), or None where it has gone.

    `torchvision.io.decode_jpeg` warns at every call that it is to leave torchvision; the operator behind it does not.
    """
    import torchvision.io  # noqa: F401 (it registers the operator)

    return getattr(torch.ops.image, "decode_jpeg", None)


def _open_draft(data: bytes, *, shrink: int) -> Image.Image:
    image = open_with_pillow(data)
    if shrink > 1:
        image.draft(None, (max(1, image.width // shrink), max(1, image.height // shrink)))
    return image


def _ends_early(data: bytes, header: _JpegHeader) -> bool:
    """Whether the decoder would have gone on reading at the end: then more data there changes the picture."""
    _, end = _walk_scans(data, header)
    longer = data[:end] + bytes(range(1, 250)) + data[end:]
    with pillow_at_work(data):
        return _open_draft(data, shrink=8).tobytes() != _open_draft(longer, shrink=8).tobytes()
