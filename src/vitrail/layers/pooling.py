"""From patches to the few tokens a classifier reads: class-attention, class-MLP (thesis 3.6, 4.2, 5.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.layers.attention import ClassAttention
from vitrail.layers.grid import Grid, GridLayer, count_of, resampling
from vitrail.layers.mlp import FeedForward
from vitrail.layers.norm import EPSILON
from vitrail.layers.residual import Block, Branch, LayerScale, Residual


class ClassStage(nn.Module):
    """Learned tokens, updated by a few residual layers that look at the frozen patches.

    In each block the communication reads the patches and the feed-forward network does not.
    """

    undecayed_tensors = ("tokens",)

    def __init__(self, dim: int, *, num_tokens: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(1, num_tokens, dim))
        self.blocks = nn.ModuleList(blocks)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.tokens, std=0.02)

    def forward(self, patches: Tensor) -> Tensor:
        """Tokens [batch, tokens, dim] from patches [batch, length, dim]."""
        tokens = self.tokens.expand(patches.shape[0], -1, -1)
        for block in self.blocks:
            tokens = block(tokens, patches)
        return tokens


class ClassLinear(GridLayer):
    """The class-MLP's aggregation: a learned weighted sum of the tokens and patches in place of attention (4.2)."""

    grid_tensors = ("linear.weight",)

    def __init__(self, num_patches: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_patches + 1, 1)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        seen = torch.cat([tokens, patches], dim=1)
        return torch.matmul(self.linear.weight, seen) + self.linear.bias

    def count_patches(self, name: str, value: Tensor) -> int | None:
        return value.shape[1] - 1 if value.ndim == 2 else None

    def resize_grid(self, name: str, value: Tensor, *, old: Grid, new: Grid, mode: str) -> Tensor:
        if value.ndim != 2 or value.shape[1] != 1 + count_of(old):
            return value
        look = value[:, 1:].double() @ resampling(new, old, mode).to(value.device)
        return torch.cat([value[:, :1], look.to(value.dtype)], dim=1)


def make_pooling_block(dim: int, *, num_heads: int, class_in_keys: bool, layer_scale: float, bias: bool) -> Block:
    """The learned aggregation of 5.2.1: one attention layer and a feed-forward network of ratio 3."""

    def residual(mix: nn.Module) -> Residual:
        norm = nn.LayerNorm(dim, eps=EPSILON)
        return Residual([Branch(norm=norm, mix=mix, scale=LayerScale(dim, value=layer_scale))])

    attention = ClassAttention(dim, num_heads=num_heads, bias=bias, class_in_keys=class_in_keys)
    return Block(communication=residual(attention), feed_forward=residual(FeedForward(dim, hidden_dim=3 * dim)))


def make_pooling_stage(
    dim: int,
    *,
    num_tokens: int = 1,
    num_heads: int = 1,
    class_in_keys: bool = True,
    layer_scale: float = 1e-6,
    bias: bool = False,
) -> ClassStage:
    """One block of learned aggregation for `num_tokens` tokens; `bias` is that of queries, keys and values."""
    block = make_pooling_block(
        dim, num_heads=num_heads, class_in_keys=class_in_keys, layer_scale=layer_scale, bias=bias
    )
    return ClassStage(dim, num_tokens=num_tokens, blocks=[block])
