"""Learned positions and their resizing to another grid (thesis 3.2 and 3.4.5)."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def resize_grid(values: Tensor, *, old: tuple[int, int], new: tuple[int, int], mode: str = "bicubic") -> Tensor:
    """Resample [1, old grid, dim] to [1, new grid, dim].

    Bicubic keeps the norm of the vectors, which bilinear shrinks (thesis 3.4.5). Computed in float32.
    """
    if old == new:
        return values
    maps = values.float().unflatten(1, old).permute(0, 3, 1, 2)
    maps = functional.interpolate(maps, size=new, mode=mode, align_corners=False)
    return maps.flatten(2).transpose(1, 2).to(values.dtype)


class LearnedPositions(nn.Module):
    """One learned vector per patch of the grid, and optionally one per special token (class, distillation)."""

    def __init__(self, dim: int, *, grid: tuple[int, int], num_tokens: int = 0) -> None:
        super().__init__()
        self.grid = grid
        self.patches = nn.Parameter(torch.empty(1, grid[0] * grid[1], dim))
        self.tokens = nn.Parameter(torch.empty(1, num_tokens, dim)) if num_tokens else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.patches, std=0.02)
        if self.tokens is not None:
            nn.init.trunc_normal_(self.tokens, std=0.02)

    def for_grid(self, grid: tuple[int, int]) -> Tensor:
        """The patches' positions, resampled where the image is of another size than the model's own."""
        return resize_grid(self.patches, old=self.grid, new=grid)
