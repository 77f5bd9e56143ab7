"""Histograms of oriented gradients of the cells of an image (Dalal and Triggs 2005), as MaskFeat takes them."""

import math

import torch
from torch import Tensor
from torch.nn import functional

NUM_BINS = 9  # directions of a gradient from 0 to 180 degrees
_SLOPE = ((1.0, 0.0, -1.0), (2.0, 0.0, -2.0), (1.0, 0.0, -1.0))  # Sobel


def cell_side(patch: int) -> int:
    """Side of a cell: half a patch of 16 pixels and more (MaskFeat's 8 of 16), else the whole patch."""
    return patch // 2 if patch >= 16 and patch % 2 == 0 else patch


@torch.no_grad()
def oriented_gradients(pixels: Tensor, *, cell: int, window: int | None = None) -> Tensor:
    """Histograms [batch, channels * 9, rows, columns] of the cells of images [batch, channels, height, width].

    Every pixel votes for the direction of its gradient, in each colour by itself, with the gradient's length. Votes
    weigh less away from the middle of a window, two cells wide by default and with its half for deviation. The
    histogram of each cell and colour is brought to length 1: the local contrast normalisation.
    """
    batch, channels, height, width = pixels.shape
    slope = pixels.new_tensor(_SLOPE).expand(channels, 1, 3, 3)
    padded = functional.pad(pixels.float(), (1, 1, 1, 1), mode="reflect")
    across = functional.conv2d(padded, slope, groups=channels)
    down = functional.conv2d(padded, slope.transpose(2, 3), groups=channels)
    bins = (torch.atan2(across, down) / math.pi * NUM_BINS).floor().long() % NUM_BINS
    votes = torch.hypot(across, down) * _window_weights(2 * cell if window is None else window, height, width).to(
        pixels
    )
    by_bin = torch.zeros(batch, channels, NUM_BINS, height, width, device=pixels.device)
    by_bin.scatter_(2, bins.unsqueeze(2), votes.unsqueeze(2))
    sums = functional.avg_pool2d(by_bin.flatten(1, 2), cell) * cell**2
    normalized = functional.normalize(sums.unflatten(1, (channels, NUM_BINS)), dim=2)
    return normalized.flatten(1, 2)


def _window_weights(side: int, height: int, width: int) -> Tensor:
    """Gaussian weights of windows side by side, [height, width]; those of a window sum to 1."""
    distance = (torch.arange(side) - (side - 1) / 2) / (side / 2)
    curve = torch.exp(-0.5 * distance.square())
    weights = torch.outer(curve, curve) / curve.sum().square()
    return weights.repeat(-(-height // side), -(-width // side))[:height, :width]
