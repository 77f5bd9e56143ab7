"""Weights for another grid of patches: each layer that depends on the grid resizes its own."""

from collections.abc import Mapping

from torch import Tensor, nn

from vitrail.layers.grid import Grid, GridLayer


def grid_tensors(model: nn.Module) -> dict[str, tuple[GridLayer, str]]:
    """The names of all tensors that are made for one grid: of each its layer, and its name there."""
    return {
        f"{path}.{name}": (layer, name)
        for path, layer in model.named_modules()
        if isinstance(layer, GridLayer)
        for name in layer.grid_tensors
    }


def count_patches(model: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """For how many patches tensors under the names of `model` were made, None where nothing in them tells."""
    for name, (layer, own) in grid_tensors(model).items():
        count = layer.count_patches(own, state[name]) if name in state else None
        if count is not None:
            return count
    return None


def resize_state(
    model: nn.Module, state: Mapping[str, Tensor], *, old: Grid, new: Grid, mode: str = "bicubic"
) -> dict[str, Tensor]:
    """Tensors under the names of `model`, those that belong to a grid moved from `old` to `new`; others as they are."""
    resized = dict(state)
    if old == new:
        return resized
    for name, (layer, own) in grid_tensors(model).items():
        if name in resized:
            resized[name] = layer.resize_grid(own, resized[name], old=old, new=new, mode=mode)
    return resized
