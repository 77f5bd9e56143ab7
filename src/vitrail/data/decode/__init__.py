"""Encoded images to uint8 pixels: fast, the right way up, and an error rather than half a picture."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitrail.data.decode.jpeg import JPEG_START, open_jpeg
from vitrail.data.decode.library_lines import take_library_lines
from vitrail.data.decode.opened import MAX_PIXELS, BrokenImageError, ImageTooLargeError, OpenedImage, UnreadFormatError
from vitrail.data.decode.pillow import open_other
from vitrail.data.decode.png import PNG_START, open_png

__all__ = [
    "MAX_PIXELS",
    "BrokenImageError",
    "ImageTooLargeError",
    "OpenedImage",
    "UnreadFormatError",
    "open_image",
    "take_library_lines",
]


def open_image(data: bytes | np.ndarray, *, max_pixels: int = MAX_PIXELS) -> OpenedImage:
    """Read the header of an encoded image, or take the pixels of an array; raises `BrokenImageError`.

    Images of more than `max_pixels` are refused before anything is decoded: a small file can unfold to gigabytes. Above
    179 million pixels Pillow refuses too, whatever is allowed here (`PIL.Image.MAX_IMAGE_PIXELS` moves its limit).
    """
    if isinstance(data, np.ndarray):
        return _open_array(data)
    if not data:
        raise BrokenImageError("is empty")
    if data.startswith(JPEG_START):
        return open_jpeg(data, max_pixels=max_pixels)
    if data.startswith(PNG_START):
        return open_png(data, max_pixels=max_pixels)
    return open_other(data, max_pixels=max_pixels)


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
