"""Encoded images to uint8 pixels: fast, the right way up, and an error rather than half a picture."""

import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

MAX_PIXELS = 100_000_000

# Formats that Pillow recognises by their first bytes and decodes by itself: EPS, for one, would start a PostScript
# interpreter, and formats without a signature would take any bytes for a picture.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
_SHRINKS = (1, 2, 4, 8)
_DAMAGED = "is cut off or damaged"

_MID_GREY = [128, 128, 128]  # what a JPEG decoder paints where the data has run out
_MAX_SCANS = 100  # of a progressive JPEG: usual are about ten; every scan costs a pass over the whole picture
_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the three others are tables
_JPEG_STANDALONE = frozenset(range(0xD0, 0xD9)) | {0x00, 0x01}  # markers that no segment follows
_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # by the number of components
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_PARTS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND"))
_ORIENTATION_TAG = 0x0112
_FLIPS: dict[int, list[int]] = {2: [1], 3: [0, 1], 4: [0], 6: [1], 7: [0, 1], 8: [0]}  # 5 to 8 are transposed before


class BrokenImageError(ValueError):
    """The data is no image, or not a whole one. The message begins with a verb: put the name of the file before it."""


class ImageTooLargeError(BrokenImageError):
    """The image unfolds to more pixels than are allowed."""


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


def open_image(data: bytes | np.ndarray, *, max_pixels: int = MAX_PIXELS) -> OpenedImage:
    """Read the header of an encoded image, or take the pixels of an array; raises `BrokenImageError`.

    Images of more than `max_pixels` are refused before anything is decoded: a small file can unfold to gigabytes. Above
    179 million pixels Pillow refuses too, whatever is allowed here (`PIL.Image.MAX_IMAGE_PIXELS` moves its limit).
    """
    if isinstance(data, np.ndarray):
        return _open_array(data)
    if not data:
        raise BrokenImageError("is empty")
    if data.startswith(_JPEG_START):
        return _open_jpeg(data, max_pixels=max_pixels)
    return _open_other(data, max_pixels=max_pixels)


def _check_size(height: int, width: int, *, max_pixels: int) -> None:
    if height <= 0 or width <= 0:
        raise BrokenImageError(f"has no pixels: its size is {width} x {height}")
    if height * width > max_pixels:
        raise ImageTooLargeError(_describe_excess(height * width, limit=max_pixels))


def _describe_excess(num_pixels: int, *, limit: int) -> str:
    return f"has {num_pixels / 1e6:,.4g} megapixels, more than the limit of {limit / 1e6:,.4g}"


def _orient(pixels: Tensor, orientation: int) -> Tensor:
    """[height, width, 3] turned as EXIF says, in contiguous memory."""
    if orientation >= 5:
        pixels = pixels.transpose(0, 1)
    if orientation in _FLIPS:
        pixels = pixels.flip(_FLIPS[orientation])
    return pixels.contiguous()


def _read_orientation(exif: bytes) -> int:
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
            if tag == _ORIENTATION_TAG:
                return _known_orientation(value)
    return 1


def _known_orientation(value: object) -> int:
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


# Arrays


def _open_array(array: np.ndarray) -> OpenedImage:
    channels = array.shape[2:]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in ((), (1,), (3,)) or array.size == 0:
        raise ValueError(
            f"an image as an array is uint8 [height, width], [height, width, 1] or [height, width, 3], "
            f"not {array.dtype} {list(array.shape)}"
        )
    height, width = array.shape[:2]
    mode = "RGB" if channels == (3,) else "L"
    return OpenedImage(height, width, "pixels", mode, False, partial(_copy_array, array))


def _copy_array(array: np.ndarray, shrink: int) -> Tensor:
    height, width = array.shape[:2]
    return torch.from_numpy(np.array(np.broadcast_to(array.reshape(height, width, -1), (height, width, 3)), order="C"))


# JPEG


class _JpegHeader(NamedTuple):
    height: int
    width: int
    num_components: int
    orientation: int
    is_plain: bool  # Huffman-coded grey or colour, baseline or progressive: what torchvision decodes
    has_many_scans: bool  # or may have
    scan: int  # where the first scan begins


def _open_jpeg(data: bytes, *, max_pixels: int) -> OpenedImage:
    header = _read_jpeg_header(data)
    height, width = header.height, header.width
    _check_size(height, width, max_pixels=max_pixels)
    if header.orientation >= 5:
        height, width = width, height
    mode = _JPEG_MODES[header.num_components]
    return OpenedImage(height, width, "JPEG", mode, False, partial(_decode_jpeg, data, header), header.orientation)


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
            orientation = _read_orientation(data[begin:end])
        place = end
    raise BrokenImageError(_DAMAGED)


def _decode_jpeg(data: bytes, header: _JpegHeader, shrink: int) -> Tensor:
    decode = _find_torchvision_decoder() if shrink == 1 and header.is_plain else None
    if data.rfind(_JPEG_END, header.scan) < 0:
        raise BrokenImageError(_DAMAGED)
    if header.has_many_scans:
        end = data.find(_JPEG_END, header.scan)  # the first: what is appended to the file does not count
        if data.count(_JPEG_SCAN, header.scan, end) > _MAX_SCANS:
            raise BrokenImageError(f"is a JPEG of more than {_MAX_SCANS} scans")
    if decode is None:
        with _pillow_at_work(data):
            pixels = _to_tensor(_open_draft(data, shrink=shrink))
    else:
        try:
            pixels = decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, False).permute(1, 2, 0)
        except RuntimeError as error:
            raise BrokenImageError(_DAMAGED) from error
    # A file that was cut off and then closed with an end marker (or hit by a stray one) passes every decoder. It is
    # found here if whole blocks are missing; a progressive file that lacks only its finer scans remains unnoticed.
    is_suspect = header.num_components == 4 or pixels.numpy()[-1, -1].tolist() == _MID_GREY
    if is_suspect and _ends_early(data, header):
        raise BrokenImageError(_DAMAGED)
    return _orient(pixels, header.orientation)


@cache
def _find_torchvision_decoder() -> Callable[[Tensor, int, bool], Tensor] | None:
    """torchvision's JPEG decoder (encoded bytes, 3 for RGB, whether to apply EXIF), or None where it has gone.

    `torchvision.io.decode_jpeg` warns at every call that it is to leave torchvision; the operator behind it does not.
    """
    import torchvision.io  # noqa: F401 (it registers the operator)

    return getattr(torch.ops.image, "decode_jpeg", None)


def _open_draft(data: bytes, *, shrink: int) -> Image.Image:
    image = _open_with_pillow(data)
    if shrink > 1:
        image.draft(None, (max(1, image.width // shrink), max(1, image.height // shrink)))
    return image


def _ends_early(data: bytes, header: _JpegHeader) -> bool:
    """Whether the decoder would have gone on reading at the end: then more data there changes the picture."""
    end = data.find(_JPEG_END, header.scan)
    longer = data[:end] + bytes(range(1, 250)) + data[end:]
    with _pillow_at_work(data):
        return _open_draft(data, shrink=8).tobytes() != _open_draft(longer, shrink=8).tobytes()


# Everything else, by Pillow


class _StrictPillow:
    """While any thread is inside, Pillow is silent and takes no file that is cut off, whatever the program has set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._undo = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._num_inside += 1
            if self._num_inside > 1:
                return
            self._undo.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
            if ImageFile.LOAD_TRUNCATED_IMAGES:
                self._undo.callback(setattr, ImageFile, "LOAD_TRUNCATED_IMAGES", True)
                ImageFile.LOAD_TRUNCATED_IMAGES = False

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._undo.close()


_STRICT_PILLOW = _StrictPillow()


@contextmanager
def _pillow_at_work(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Iterator[None]:
    """Strict and silent, and whatever goes wrong inside is a `BrokenImageError`."""
    try:
        with _STRICT_PILLOW:
            yield
    except (BrokenImageError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        is_known = any(accept and accept(data[:16]) for _, accept in map(Image.OPEN.__getitem__, _find_formats()))
        told = _DAMAGED if is_known else f"is not an image that can be read: it begins with {data[:12]!r}"
        raise BrokenImageError(told) from error
    except Image.DecompressionBombError as error:
        found = re.search(r"(\d+) pixels\D+(\d+) pixels", str(error))
        if found is None:
            raise BrokenImageError(f"is too large: {error}") from error
        raise ImageTooLargeError(_describe_excess(int(found[1]), limit=min(int(found[2]), max_pixels))) from error
    except Exception as error:  # decoders that are fed with garbage raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BrokenImageError(_DAMAGED if "truncated" in reason.lower() else f"cannot be decoded: {reason}") from error


@cache
def _find_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _open_with_pillow(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data), formats=_find_formats())


def _open_other(data: bytes, *, max_pixels: int) -> OpenedImage:
    is_animated = False
    if data.startswith(_PNG_START):
        data, is_animated = _strip_png(data)
    with _pillow_at_work(data, max_pixels=max_pixels):
        image = _open_with_pillow(data)
        is_animated = is_animated or bool(getattr(image, "is_animated", False))
    width, height = image.size
    _check_size(height, width, max_pixels=max_pixels)
    exif = image.info.get("exif")
    orientation = _read_orientation(exif) if isinstance(exif, bytes) else 1
    if orientation >= 5:
        height, width = width, height
    decode = partial(_decode_other, data, orientation)
    if isinstance(image, TiffImageFile):  # Pillow itself turns it
        orientation = _known_orientation(image.tag_v2.get(_ORIENTATION_TAG))
    return OpenedImage(height, width, image.format or "", image.mode, is_animated, decode, orientation)


def _decode_other(data: bytes, orientation: int, shrink: int) -> Tensor:
    with _pillow_at_work(data):
        image = _open_with_pillow(data)
        if image.format == "JPEG2000" and _JPEG_END not in data:  # its decoder paints what is missing
            raise BrokenImageError(_DAMAGED)
        pixels = _to_tensor(image)
    return _orient(pixels, orientation)


def _strip_png(data: bytes) -> tuple[bytes, bool]:
    """The file without the parts that are no pixels, and whether it is animated.

    Texts and colour profiles are where bombs hide and where Pillow gives up; the first frame is the plain image. The
    check sums are compared here because Pillow does not look at those of the pixels.
    """
    parts, is_animated, place = [_PNG_START], False, len(_PNG_START)
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        start, end = place, place + 12 + length
        if end > len(data):
            break
        place = end
        is_animated = is_animated or kind == b"acTL"
        if kind not in _PNG_PARTS:
            continue
        if zlib.crc32(memoryview(data)[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            if kind == b"eXIf":
                continue
            raise BrokenImageError(f"is damaged: wrong check sum in its part {kind.decode()}")
        parts.append(data[start:end])
        if kind == b"IEND":
            return b"".join(parts), is_animated
    raise BrokenImageError(_DAMAGED)


def _to_tensor(image: Image.Image) -> Tensor:
    """[height, width, 3]: RGB on white, of any mode."""
    is_16_bit = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if is_16_bit:  # the upper byte, as Pillow takes it of 16-bit colours
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_scale_levels(np.asarray(image, dtype=np.float64)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, 3)


def _scale_levels(levels: np.ndarray) -> np.ndarray:
    """32-bit grey to 8 bits: by the smallest usual range that holds it (1, 255 or 65535), or by its own."""
    levels = np.nan_to_num(levels, posinf=0.0, neginf=0.0)
    low, high = levels.min(), levels.max()
    if low >= 0.0:
        low, high = 0.0, next((top for top in (1.0, 255.0, 65535.0) if high <= top), high)
    return np.rint((levels - low) * (255.0 / max(high - low, 1e-30))).astype(np.uint8)
