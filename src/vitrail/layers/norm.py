"""Normalisations that act on the last dimension, by name."""

import torch
from torch import Tensor, nn
from torch.nn import functional

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


class ChannelsLastBatchNorm(nn.BatchNorm2d):
    """Batch normalisation of [batch, ..., channels], without moving the channels in memory."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        use_batch = self.training or not self.track_running_stats
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 0.1
        normed = functional.batch_norm(
            flat, self.running_mean, self.running_var, self.weight, self.bias, use_batch, momentum, self.eps
        )
        return normed.view(x.shape)


def make_norm(kind: str, dim: int) -> nn.Module:
    """The normalisation called `kind`: "layer", "affine", "batch" or "none"."""
    if kind == "layer":
        return nn.LayerNorm(dim, eps=EPSILON)
    if kind == "affine":
        return Affine(dim)
    if kind == "batch":
        return ChannelsLastBatchNorm(dim)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"unknown norm {kind!r}: choose layer, affine, batch or none")
