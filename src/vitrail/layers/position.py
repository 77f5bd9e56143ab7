"""Learned positions, which follow images to another grid of patches (thesis 3.2 and 3.4.5)."""

import torch
from torch import Tensor, nn

from vitrail.layers.grid import Grid, GridLayer, count_of, resample_vectors


class LearnedPositions(GridLayer):
    """One learned vector per patch of the grid, and optionally one per special token (class, distillation)."""

    grid_tensors = ("patches",)
    undecayed_tensors = ("patches", "tokens")

    def __init__(self, dim: int, *, grid: Grid, num_tokens: int = 0) -> None:
        super().__init__()
        self.grid = grid
        self.patches = nn.Parameter(torch.empty(1, grid[0] * grid[1], dim))
        self.tokens = nn.Parameter(torch.empty(1, num_tokens, dim)) if num_tokens else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.patches, std=0.02)
        if self.tokens is not None:
            nn.init.trunc_normal_(self.tokens, std=0.02)

    def for_grid(self, grid: Grid) -> Tensor:
        """The patches' positions, resampled where the image is of another size than the model's own."""
        return resample_vectors(self.patches, old=self.grid, new=grid)

    def count_patches(self, name: str, value: Tensor) -> int | None:
        return value.shape[1] if value.ndim == 3 else None

    def resize_grid(self, name: str, value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
        is_of_grid = value.ndim == 3 and value.shape[1] == count_of(old)
        return resample_vectors(value, old=old, new=new, mode=mode) if is_of_grid else value
