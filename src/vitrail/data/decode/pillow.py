"""Whatever Pillow decodes, with Pillow kept strict and silent."""

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from io import BytesIO

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from vitrail.data.decode.opened import (
    DAMAGED,
    MAX_PIXELS,
    ORIENTATION_TAG,
    BrokenImageError,
    ImageTooLargeError,
    OpenedImage,
    check_size,
    describe_excess,
    known_orientation,
    orient,
    read_orientation,
)

# Formats that Pillow recognises by their first bytes and decodes by itself: EPS, for one, would start a PostScript
# interpreter, and formats without a signature would take any bytes for a picture.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
_JPEG2000_END = b"\xff\xd9"


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
def pillow_at_work(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Iterator[None]:
    """Let Pillow work strictly and silently; whatever goes wrong inside is a `BrokenImageError`."""
    try:
        with _STRICT_PILLOW:
            yield
    except (BrokenImageError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        is_known = any(accept and accept(data[:16]) for _, accept in map(Image.OPEN.__getitem__, _find_formats()))
        told = DAMAGED if is_known else f"is not an image that can be read: it begins with {data[:12]!r}"
        raise BrokenImageError(told) from error
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
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def open_with_pillow(data: bytes) -> Image.Image:
    """Open an image of one of the formats that are taken."""
    return Image.open(BytesIO(data), formats=_find_formats())


def open_other(data: bytes, *, max_pixels: int) -> OpenedImage:
    """An image of any format that Pillow reads."""
    with pillow_at_work(data, max_pixels=max_pixels):
        image = open_with_pillow(data)
        is_animated = bool(getattr(image, "is_animated", False))
    width, height = image.size
    check_size(height, width, max_pixels=max_pixels)
    exif = image.info.get("exif")
    orientation = read_orientation(exif) if isinstance(exif, bytes) else 1
    if orientation >= 5:
        height, width = width, height
    decode = partial(decode_with_pillow, data, orientation)
    if isinstance(image, TiffImageFile):  # Pillow itself turns it
        orientation = known_orientation(image.tag_v2.get(ORIENTATION_TAG))
    return OpenedImage(height, width, image.format or "", image.mode, is_animated, decode, orientation)


def decode_with_pillow(data: bytes, orientation: int, shrink: int) -> Tensor:
    """Pixels [height, width, 3], turned as the orientation says; in full, whatever the shrink."""
    with pillow_at_work(data):
        image = open_with_pillow(data)
        if image.format == "JPEG2000" and _JPEG2000_END not in data:  # its decoder paints what is missing
            raise BrokenImageError(DAMAGED)
        pixels = to_tensor(image)
    return orient(pixels, orientation)


def to_tensor(image: Image.Image) -> Tensor:
    """Pixels [height, width, 3]: RGB on white, from an image of any mode."""
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
