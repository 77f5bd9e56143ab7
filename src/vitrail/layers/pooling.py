"""From patches to the few tokens a classifier reads: class-attention, class-MLP (thesis 3.6, 4.2, 5.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ClassStage(nn.Module):
    """Learned tokens, updated by a few residual layers that look at the frozen patches.

    In each block the communication reads the patches and the feed-forward network does not.
    """

    def __init__(self, dim: int, *, num_tokens: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(1, num_tokens, dim))
        self.blocks = nn.ModuleList(blocks)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.tokens, std=0.02)

    def forward(self, patches: Tensor) -> Tensor:
        """[batch, length, dim] -> [batch, tokens, dim]."""
        tokens = self.tokens.expand(patches.shape[0], -1, -1)
        for block in self.blocks:
            tokens = block(tokens, patches)
        return tokens


class ClassLinear(nn.Module):
    """The class-MLP's aggregation: a learned weighted sum of the tokens and patches in place of attention (4.2)."""

    def __init__(self, num_patches: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_patches + 1, 1)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        seen = torch.cat([tokens, patches], dim=1)
        return torch.matmul(self.linear.weight, seen) + self.linear.bias
