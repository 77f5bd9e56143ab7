"""Communication between patches without attention: ResMLP's (table 4.3) and PatchConvNet's (thesis 5.2.1)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.layers.grid import Grid, GridLayer, count_of, resampling
from vitrail.layers.mlp import FeedForward


class CrossPatchLinear(GridLayer):
    """A linear layer across patches, the same for every channel (A of eq. 4.2)."""

    grid_tensors = ("linear.weight", "linear.bias")

    def __init__(self, num_patches: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_patches, num_patches)

    def forward(self, patches: Tensor) -> Tensor:  # [batch, length, dim]
        batch = patches.shape[0]
        return torch.baddbmm(self.linear.bias[:, None], self.linear.weight.expand(batch, -1, -1), patches)

    def count_patches(self, name: str, value: Tensor) -> int | None:
        return min(value.shape) if value.ndim == 2 else None

    def resize_grid(self, name: str, value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
        """The matrix A, or its bias, for another grid.

        The new layer resamples its input to the old grid, applies A, and resamples the outcome to the new grid:
        A is interpolated over its outputs as maps are, and over its inputs by the transpose of a resampling, which
        spreads each weight over the new patches in proportion to old over new patches. Resampling keeps constants, so
        an image whose patches are all alike gets the response it had.
        """
        if set(value.shape) != {count_of(old)}:
            return value
        resized = resampling(old, new, mode).to(value.device) @ value.double()
        if value.ndim == 2:
            resized = resized @ resampling(new, old, mode).to(value.device)
        return resized.to(value.dtype)


class CrossPatchMLP(GridLayer):
    """A feed-forward network across patches in place of A."""

    grid_tensors = tuple(
        f"feed_forward.{layer}.{part}" for layer in ("expand", "contract") for part in ("weight", "bias")
    )

    def __init__(self, num_patches: int, *, activation: str = "gelu") -> None:
        super().__init__()
        self.feed_forward = FeedForward(num_patches, hidden_dim=4 * num_patches, activation=activation)

    def forward(self, patches: Tensor) -> Tensor:  # [batch, length, dim]
        return self.feed_forward(patches.transpose(1, 2)).transpose(1, 2)

    def count_patches(self, name: str, value: Tensor) -> int | None:
        return min(value.shape) if value.ndim == 2 else None

    def resize_grid(self, name: str, value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
        """Refuse another grid: the hidden width belongs to the grid too."""
        raise ValueError(
            f"an MLP across patches can't change its resolution: create the model for {old[0]}x{old[1]} patches"
        )


class PatchConvolution(nn.Module):
    """3x3 convolutions on a grid of patches of any size in place of A: "full", "depthwise" or "separable"."""

    def __init__(self, dim: int, *, kind: str) -> None:
        super().__init__()
        groups = 1 if kind == "full" else dim
        self.convolution = nn.Conv2d(dim, dim, 3, padding=1, groups=groups)
        self.pointwise = nn.Conv2d(dim, dim, 1) if kind == "separable" else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:  # [batch, height, width, dim]
        return self.pointwise(self.convolution(maps.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


class SqueezeExcite(nn.Module):
    """Channel weights computed from the average of all patches, with a bottleneck of `ratio` times the width."""

    def __init__(self, dim: int, *, ratio: float = 0.25) -> None:
        super().__init__()
        hidden_dim = max(1, round(dim * ratio))
        self.reduce = nn.Linear(dim, hidden_dim)
        self.expand = nn.Linear(hidden_dim, dim)

    def forward(self, maps: Tensor) -> Tensor:  # [batch, height, width, dim]
        squeezed = functional.relu(self.reduce(maps.mean(dim=(1, 2))))
        return maps * torch.sigmoid(self.expand(squeezed))[:, None, None, :]


class ConvolutionMix(nn.Module):
    """PatchConvNet's branch: 1x1, GELU, depth-wise 3x3, GELU, squeeze-excite, 1x1, on [batch, height, width, dim].

    The channels stay last in memory throughout: 1x1 convolutions are linear layers and the 3x3 one reads a view.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, dim)
        self.spatial = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.squeeze_excite = SqueezeExcite(dim)
        self.contract = nn.Linear(dim, dim)
        self.activation = nn.GELU()

    def finish_init(self) -> None:
        """Linear layers that stand for 1x1 convolutions start as convolutions do."""
        for layer in (self.expand, self.contract, self.squeeze_excite.reduce, self.squeeze_excite.expand):
            layer.reset_parameters()

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.activation(self.expand(maps))
        maps = self.activation(self.spatial(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        return self.contract(self.squeeze_excite(maps))
