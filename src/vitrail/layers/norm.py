"""Normalisations that act on the last dimension, by name."""

import torch
from torch import Tensor, nn

EPSILON = 1e-6  # every official model uses it


class Affine(nn.Module):
    """A scale and a shift per channel and no statistics (ResMLP eq. 4.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self.weight, x)


class ChannelsLastBatchNorm(nn.Module):
    """Batch normalisation of [batch, ..., channels] through a view; the channels stay where they are in memory.

    The norm inside is torch's own, so that its conversion to synchronised batch norm works.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.batch_norm = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return self.batch_norm(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
        return self.batch_norm(x.movedim(-1, 1)).movedim(1, -1)


def make_norm(kind: str, dim: int) -> nn.Module:
    """The normalisation called `kind`: "layer", "affine" or "batch"."""
    if kind == "layer":
        return nn.LayerNorm(dim, eps=EPSILON)
    if kind == "affine":
        return Affine(dim)
    if kind == "batch":
        return ChannelsLastBatchNorm(dim)
    raise ValueError(f"unknown norm {kind!r}: choose layer, affine or batch")
