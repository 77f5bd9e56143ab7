"""Whatever Pillow decodes, with Pillow kept strict and silent."""

import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from io import BytesIO

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    SAMPLESPERPIXEL,
    TILELENGTH,
    TILEWIDTH,
    TiffImageFile,
)
from torch import Tensor

from vitrail.data.decode.foreign import describe_foreign
from vitrail.data.decode.library_lines import LIBRARY_LINES
from vitrail.data.decode.opened import (
    DAMAGED,
    MAX_PIXELS,
    ORIENTATION_TAG,
    BrokenImageError,
    ImageTooLargeError,
    OpenedImage,
    check_bytes,
    check_size,
    describe_excess,
    known_orientation,
    orient,
    read_orientation,
)

# Formats that Pillow recognises by their first bytes and decodes by itself: EPS, for one, would start a PostScript
# interpreter, and formats without a signature would take any bytes for a picture.
_FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
_JPEG2000_END = b"\xff\xd9"
_BLOCK = 1 << 20  # pixels that are converted at once


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
            self._undo.enter_context(LIBRARY_LINES)
            logger, handler = logging.getLogger("PIL"), logging.NullHandler()  # without any, logging prints
            logger.addHandler(handler)
            self._undo.callback(logger.removeHandler, handler)
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
def pillow_at_work(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Iterator[None]:
    """Let Pillow work strictly and silently; whatever goes wrong inside is a `BrokenImageError`."""
    try:
        with _STRICT_PILLOW:
            yield
    except BrokenImageError:
        raise
    except MemoryError as error:
        raise BrokenImageError("needs more memory to be decoded than there is") from error
    except UnidentifiedImageError as error:
        is_known = any(accept and accept(data[:16]) for _, accept in map(Image.OPEN.__getitem__, _find_formats()))
        raise (BrokenImageError(DAMAGED) if is_known else describe_foreign(data)) from error
    except Image.DecompressionBombError as error:
        found = re.search(r"(\d+) pixels\D+(\d+) pixels", str(error))
        if found is None:
            raise BrokenImageError(f"is too large: {error}") from error
        raise ImageTooLargeError(describe_excess(int(found[1]), limit=min(int(found[2]), max_pixels))) from error
    except Exception as error:  # decoders that are fed with garbage raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BrokenImageError(DAMAGED if "truncated" in reason.lower() else f"cannot be decoded: {reason}") from error


@cache
def _find_formats() -> tuple[str, ...]:
    Image.init()
    with suppress(ImportError):  # the extra "heic"
        import pillow_heif

        pillow_heif.register_heif_opener()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def open_with_pillow(data: bytes) -> Image.Image:
    """Open an image of one of the formats that are taken."""
    return Image.open(BytesIO(data), formats=_find_formats())


def open_other(data: bytes, *, max_pixels: int) -> OpenedImage:
    """An image of any format that Pillow reads."""
    with pillow_at_work(data, max_pixels=max_pixels):
        image = open_with_pillow(data)
        is_animated = bool(getattr(image, "is_animated", False))
        num_bytes = _count_tiff_bytes(image) if isinstance(image, TiffImageFile) else 0
    width, height = image.size
    check_size(height, width, max_pixels=max_pixels)
    check_bytes(num_bytes, max_pixels=max_pixels)
    exif = image.info.get("exif")
    orientation = read_orientation(exif) if isinstance(exif, bytes) else 1
    if orientation >= 5:
        height, width = width, height
    decode = partial(decode_with_pillow, data, orientation)
    if isinstance(image, TiffImageFile):  # Pillow itself turns it
        orientation = known_orientation(image.tag_v2.get(ORIENTATION_TAG))
    return OpenedImage(height, width, image.format or "", image.mode, is_animated, decode, orientation)


def _count_tiff_bytes(image: TiffImageFile) -> int:
    """What the image unfolds to, or a tile of it where that is more: a tile may be larger than the image."""
    tags = image.tag_v2
    bits = tags.get(BITSPERSAMPLE, (1,))
    num_samples = max(tags.get(SAMPLESPERPIXEL, 1), len(bits))
    num_pixels = max(image.width * image.height, tags.get(TILEWIDTH, 0) * tags.get(TILELENGTH, 0))
    return int(num_pixels * num_samples * max(bits) // 8)


def decode_with_pillow(data: bytes, orientation: int, shrink: int) -> Tensor:
    """Pixels [height, width, 3], turned as the orientation says; in full, whatever the shrink."""
    with pillow_at_work(data):
        image = open_with_pillow(data)
        if image.format == "JPEG2000" and _JPEG2000_END not in data:  # its decoder paints what is missing
            raise BrokenImageError(DAMAGED)
        del image  # it would be kept beside its pixels
        pixels = to_tensor(open_with_pillow(data))
    return orient(pixels, orientation)


def to_tensor(image: Image.Image) -> Tensor:
    """Pixels [height, width, 3]: RGB on white, from an image of any mode, strip by strip: no whole copy is made."""
    image.load()
    is_16_bit = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    low, high = _find_range(image) if image.mode in ("I", "F") and not is_16_bit else (0.0, 0.0)
    pixels = torch.empty(image.height, image.width, 3, dtype=torch.uint8)
    for start, part in _strips(image):
        if is_16_bit:  # the upper byte, as Pillow takes it of 16-bit colours
            part = Image.fromarray((np.asarray(part) >> 8).astype(np.uint8))
        elif part.mode in ("I", "F"):
            part = Image.fromarray(_scale_levels(np.asarray(part), low=low, high=high))
        if part.has_transparency_data:
            part = part.convert("RGBA")
            part = Image.alpha_composite(Image.new("RGBA", part.size, "white"), part)
        if part.mode != "RGB":
            part = part.convert("RGB")
        rows = np.asarray(part)
        pixels.numpy()[start : start + len(rows)] = rows
    return pixels


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The rows of an image in parts, each beside the number of its first row; a small image is one part."""
    num_rows = max(1, _BLOCK // image.width)
    if num_rows >= image.height:
        yield 0, image
        return
    for start in range(0, image.height, num_rows):
        yield start, image.crop((0, start, image.width, min(start + num_rows, image.height)))


def _find_range(image: Image.Image) -> tuple[float, float]:
    """What becomes black and white of 32-bit grey: the smallest usual range that holds it, or its own."""
    spans = [(levels.min(), levels.max()) for _, part in _strips(image) for levels in [_finite(np.asarray(part))]]
    low, high = float(min(low for low, _ in spans)), float(max(high for _, high in spans))
    if low >= 0.0:
        low, high = 0.0, next((top for top in (1.0, 255.0, 65535.0) if high <= top), high)
    return low, high


def _scale_levels(levels: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """32-bit grey to 8 bits."""
    return np.rint((_finite(levels) - low) * (255.0 / max(high - low, 1e-30))).astype(np.uint8)


def _finite(levels: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of a NaN that would signal
        return np.nan_to_num(levels.astype(np.float64), posinf=0.0, neginf=0.0)
