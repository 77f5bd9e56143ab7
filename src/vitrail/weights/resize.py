"""Weights for another resolution: positions (thesis 3.4.5) and ResMLP's layers across patches (chapter 4)."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.heads.embed import trunk_of
from vitrail.layers.position import resize_grid
from vitrail.models.contract import Model

MODES = ("bicubic", "bilinear")

POSITIONS = re.compile(r"positions\.patches")
ACROSS_PATCHES = re.compile(r"blocks\.\d+\.communication\.branches\.\d+\.mix\.linear\.(weight|bias)")
FROM_PATCHES = re.compile(r"class_stage\.blocks\.\d+\.communication\.branches\.\d+\.mix\.linear\.weight")
MLP_ACROSS_PATCHES = re.compile(r"blocks\.\d+\.communication\.branches\.\d+\.mix\.feed_forward\..*")

Grid = tuple[int, int]


def square_side(count: int) -> int | None:
    """The side of a square of `count` patches, None where there is none."""
    side = math.isqrt(max(count, 0))
    return side if side and side * side == count else None


def grid_of(model: Model) -> Grid | None:
    """Rows and columns of the patches that a model's weights are tied to, None where they are not."""
    trunk = trunk_of(model)
    owner = getattr(trunk, "positions", trunk)
    return getattr(owner, "grid", None)


def count_patches(state: Mapping[str, Tensor]) -> int | None:
    """For how many patches our tensors were made, None where nothing in them tells."""
    for name, value in state.items():
        if POSITIONS.fullmatch(name) and value.ndim == 3:
            return value.shape[1]
        is_across = ACROSS_PATCHES.fullmatch(name) or MLP_ACROSS_PATCHES.fullmatch(name)
        if is_across and value.ndim == 2:
            return min(value.shape)
        if FROM_PATCHES.fullmatch(name) and value.ndim == 2:
            return value.shape[1] - 1
    return None


def is_tied_to_grid(name: str) -> bool:
    """Whether a tensor of a model whose weights are tied to a grid has one of the grid's shape."""
    kinds = (POSITIONS, ACROSS_PATCHES, FROM_PATCHES, MLP_ACROSS_PATCHES)
    return any(kind.fullmatch(name) for kind in kinds)


def resize_weights(state: Mapping[str, Tensor], *, old: Grid, new: Grid, mode: str) -> dict[str, Tensor]:
    """Our tensors, those that belong to a grid of patches resampled from `old` to `new`; others as they are."""
    return {name: resize_tensor(name, value, old=old, new=new, mode=mode) for name, value in state.items()}


def resize_tensor(name: str, value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
    count = old[0] * old[1]
    if POSITIONS.fullmatch(name) and value.ndim == 3 and value.shape[1] == count:
        return resize_grid(value, old=old, new=new, mode=mode)
    if ACROSS_PATCHES.fullmatch(name) and set(value.shape) == {count}:
        return resize_across_patches(value, old=old, new=new, mode=mode)
    if FROM_PATCHES.fullmatch(name) and value.ndim == 2 and value.shape[1] == 1 + count:
        look = value[:, 1:].double() @ resampling(new, old, mode).to(value.device)
        return torch.cat([value[:, :1], look.to(value.dtype)], dim=1)
    return value


def resize_across_patches(value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
    """ResMLP's A and its bias on another grid.

    The new layer resamples its input to the old grid, applies A, and resamples the outcome to the new grid:
    A is interpolated over its outputs as maps are, and over its inputs by the transpose of a resampling, which
    spreads each weight over the new patches in proportion to old over new patches. Resampling keeps constants, so
    an image whose patches are all alike gets the response it had.
    """
    resized = resampling(old, new, mode).to(value.device) @ value.double()
    if value.ndim == 2:
        resized = resized @ resampling(new, old, mode).to(value.device)
    return resized.to(value.dtype)


@lru_cache(maxsize=4)
def resampling(old: Grid, new: Grid, mode: str) -> Tensor:
    """The matrix [new patches, old patches] that resamples a map, averaging where the new grid is coarser."""
    rows, columns = old
    maps = torch.eye(rows * columns, dtype=torch.float64, device="cpu").view(-1, 1, rows, columns)
    return functional.interpolate(maps, size=new, mode=mode, antialias=True).flatten(1).T.contiguous()
