"""Weights that make up for rare classes: a pole has few pixels in few pictures."""

import torch
from torch import Tensor

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.class_table import apply_table
from vitrail.data.dense.contract import IGNORED, SegmentationSet

_MASKS = 1000  # that are read at most, spread evenly over the data


def count_pixels(data: SegmentationSet, *, table: Tensor, num_classes: int) -> Tensor:
    """Pixels of each class that is learnt, float64 [classes], in masks spread evenly over the data."""
    counts = torch.zeros(num_classes, dtype=torch.float64)
    step = max(1, len(data) // _MASKS)
    for index in range(0, len(data), step):
        try:
            mask = torch.from_numpy(data.read_mask(index).copy())  # what a file gives may be for reading only
        except (OSError, BrokenImageError):
            continue  # what can't be read is told where it is learnt from
        known = apply_table(mask, table)
        counts += torch.bincount(known[known != IGNORED].flatten().long(), minlength=num_classes)
    return counts


def has_labelled_pixels(data: SegmentationSet, *, table: Tensor) -> bool:
    """Whether a mask has a pixel of a class that is learnt; masks are read up to the first that has one.

    Where no mask can be read, nothing is known: that is told where they are learnt from.
    """
    num_read = 0
    for index in range(len(data)):
        try:
            mask = torch.from_numpy(data.read_mask(index).copy())
        except (OSError, BrokenImageError):
            continue
        num_read += 1
        if bool((apply_table(mask, table) != IGNORED).any()):
            return True
    return num_read == 0


def balance_classes(counts: Tensor, *, power: float) -> Tensor:
    """Weights [classes] that fall with the share of a class to that power; their mean over all pixels is 1.

    A class that has no pixel weighs as much as the rarest one.
    """
    shares = counts / counts.sum().clamp_min(1.0)
    seen = shares[shares > 0]
    if len(seen) == 0:
        return torch.ones(len(counts))
    weights = shares.clamp_min(float(seen.min())) ** -power
    return (weights / (shares * weights).sum()).float()
