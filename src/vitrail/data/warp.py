"""Shearing, shifting and turning uint8 pixels [3, height, width], with Pillow's coordinates and filters."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from torch import Tensor

# What appears where the picture has been moved away: the mean colour of ImageNet.
FILL = (124, 116, 104)
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def shear_x(pixels: Tensor, slope: float, *, interpolation: str = "bicubic") -> Tensor:
    """Shift each row by `slope` times its distance from the upper edge."""
    return _shift_rows(pixels, slope * (np.arange(pixels.shape[1]) + 0.5), interpolation=interpolation)


def shear_y(pixels: Tensor, slope: float, *, interpolation: str = "bicubic") -> Tensor:
    """Shift each column by `slope` times its distance from the left edge."""
    return _transpose(shear_x(_transpose(pixels), slope, interpolation=interpolation))


def translate_x(pixels: Tensor, distance: float, *, interpolation: str = "bicubic") -> Tensor:
    """Shift by a distance in pixels, to the left where it is positive."""
    return _shift_rows(pixels, np.full(pixels.shape[1], distance), interpolation=interpolation)


def translate_y(pixels: Tensor, distance: float, *, interpolation: str = "bicubic") -> Tensor:
    """Shift by a distance in pixels, upwards where it is positive."""
    return _transpose(translate_x(_transpose(pixels), distance, interpolation=interpolation))


def rotate(pixels: Tensor, degrees: float, *, interpolation: str = "bicubic") -> Tensor:
    """Turn about the centre, anticlockwise where the angle is positive."""
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    turned = image.rotate(degrees, resample=_RESAMPLING[interpolation], fillcolor=FILL)
    return torch.from_numpy(np.array(turned)).permute(2, 0, 1)


def _transpose(pixels: Tensor) -> Tensor:
    """Rows to columns, channels last in memory again."""
    return pixels.permute(2, 1, 0).contiguous().permute(2, 0, 1)


def _shift_rows(pixels: Tensor, shifts: np.ndarray, *, interpolation: str) -> Tensor:
    """Take each pixel from a place `shifts[row]` further right.

    A row has one shift, hence one set of weights: the sum of a few copies of the row does what Pillow does with a
    filter at each pixel, in a fraction of the time.
    """
    _, height, width = pixels.shape
    wholes = np.floor(shifts).astype(np.int64)
    parts = torch.from_numpy((shifts - wholes).astype(np.float32))[:, None]
    weights = _cubic_weights(parts) if interpolation == "bicubic" else [1 - parts, parts]
    first = -(len(weights) // 2 - 1)  # the leftmost neighbour: -1 or 0
    margin = int(np.abs(wholes).max()) + 2
    padded = np.empty((height, width + 2 * margin, 3), dtype=np.uint8)
    padded[:, margin:-margin] = pixels.permute(1, 2, 0).numpy()
    for step in range(1, 3):  # what lies further outside is painted over below
        padded[:, margin - step], padded[:, -margin - 1 + step] = padded[:, margin], padded[:, -margin - 1]
    windows = sliding_window_view(padded.reshape(height, -1), 3 * (width + len(weights) - 1), axis=1)
    values = torch.from_numpy(windows[np.arange(height), 3 * (margin + wholes + first)]).float()
    total = torch.zeros(height, 3 * width)
    for place, weight in enumerate(weights):
        total.addcmul_(values[:, 3 * place : 3 * (place + width)], weight)
    shifted = total.clamp_(0, 255).numpy().astype(np.uint8)
    columns = np.repeat(np.arange(width, dtype=np.int32), 3)
    begin, end = (np.ceil(side - 0.5 - shifts).astype(np.int32)[:, None] for side in (0, width))
    fill = np.tile(np.array(FILL, dtype=np.uint8), width)
    np.copyto(shifted, fill, where=(columns < begin) | (columns >= end))
    return torch.from_numpy(shifted).view(height, width, 3).permute(2, 0, 1)


def _cubic_weights(parts: Tensor) -> list[Tensor]:
    """The weights of the neighbours at -1, 0, 1 and 2 for a place between 0 and 1: cubic convolution, slope -1."""
    squares, cubes = parts**2, parts**3
    return [2 * squares - parts - cubes, 1 - 2 * squares + cubes, parts + squares - cubes, cubes - squares]
