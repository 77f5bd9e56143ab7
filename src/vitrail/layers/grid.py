"""Tensors that are made for one grid of patches, and how they move to another (thesis 3.4.5 and chapter 4)."""

from abc import abstractmethod
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Grid = tuple[int, int]  # rows and columns
MODES = ("bicubic", "bilinear", "antialiased")  # the last: bicubic, and averaging where the new grid is coarser


class GridLayer(nn.Module):
    """A layer some of whose tensors are made for one grid of patches.

    It answers for tensors under its own names, which need not be those it holds: weights are resized before they are
    loaded.
    """

    grid_tensors: ClassVar[tuple[str, ...]]  # the names of these tensors

    @abstractmethod
    def count_patches(self, name: str, value: Tensor) -> int | None:
        """The number of patches that one of its tensors was made for, None where the tensor does not tell."""

    @abstractmethod
    def resize_grid(self, name: str, value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
        """One of the layer's tensors for another grid; one that is not of the old grid stays as it is."""


def resample_vectors(values: Tensor, *, old: Grid, new: Grid, mode: str = "bicubic") -> Tensor:
    """Resample [1, old grid, dim] to [1, new grid, dim].

    Bicubic keeps the norm of the vectors, which bilinear shrinks (thesis 3.4.5). "antialiased" is what timm does:
    bicubic too, with averages where the grid is coarser. Computed in float32.
    """
    if not is_symbolic(new) and old == new:
        return values
    maps = values.float().unflatten(1, old).permute(0, 3, 1, 2)
    is_averaged = mode == "antialiased"
    filter_name = "bicubic" if is_averaged else mode
    maps = functional.interpolate(maps, size=new, mode=filter_name, align_corners=False, antialias=is_averaged)
    return maps.flatten(2).transpose(1, 2).to(values.dtype)


def is_symbolic(grid: Grid) -> bool:
    """Whether an exporter looks on, for whom the grid may be any: a comparison would bind it to that of the moment."""
    return any(isinstance(side, torch.SymInt) for side in grid)


@lru_cache(maxsize=4)
def resampling(old: Grid, new: Grid, mode: str) -> Tensor:
    """The matrix [new patches, old patches] that resamples a map, averaging where the new grid is coarser."""
    rows, columns = old
    filter_name = "bicubic" if mode == "antialiased" else mode
    maps = torch.eye(rows * columns, dtype=torch.float64, device="cpu").view(-1, 1, rows, columns)
    return functional.interpolate(maps, size=new, mode=filter_name, antialias=True).flatten(1).T.contiguous()


def count_of(grid: Grid) -> int:
    """The number of patches of a grid."""
    return grid[0] * grid[1]
