"""Attention: among patches, with talking heads, from a class token, and as a pooling (thesis 3.2, 3.6, 5.2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.layers.dot_product import dot_product_attention
from vitrail.layers.residual import ScalarBias
from vitrail.layers.talking_heads import talking_heads_attention


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[batch, length, dim] -> [batch, heads, length, dim / heads], a view."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[batch, heads, length, head_dim] -> [batch, length, heads * head_dim]."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head self-attention (eq. 3.1).

    With a context only `tokens` ask, and the keys are those of the tokens and the context.
    """

    def __init__(self, dim: int, *, num_heads: int, scalar_bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.before_proj = ScalarBias() if scalar_bias else nn.Identity()
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        return self.proj(self.gather(tokens, context))

    def gather(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        """What the last projection takes, [batch, length, heads * head_dim]."""
        return self.before_proj(self.attend(*self.project(tokens, context)))

    def project(self, tokens: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [batch, heads, length, head_dim]."""
        if context is None:
            query, key, value = self.qkv(tokens).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            return query, key, value
        inner = self.proj.in_features
        weight, bias = self.qkv.weight, self.qkv.bias
        query = functional.linear(tokens, weight[:inner], bias[:inner])
        everything = torch.cat([tokens, context], dim=1)
        key_value = functional.linear(everything, weight[inner:], bias[inner:])
        key, value = key_value.unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return split_heads(query, self.num_heads), key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The weighted sum of the values, [batch, length, heads * head_dim]."""
        return join_heads(dot_product_attention(query, key, value))


class TalkingHeadsAttention(SelfAttention):
    """Self-attention whose heads are mixed linearly before and after the softmax (thesis 3.7, after Shazeer et al.)."""

    def __init__(self, dim: int, *, num_heads: int, scalar_bias: bool = False) -> None:
        super().__init__(dim, num_heads=num_heads, scalar_bias=scalar_bias)
        self.before_softmax = nn.Linear(num_heads, num_heads)
        self.after_softmax = nn.Linear(num_heads, num_heads)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = talking_heads_attention(
            query,
            key,
            value,
            before_weight=self.before_softmax.weight,
            before_bias=self.before_softmax.bias,
            after_weight=self.after_softmax.weight,
            after_bias=self.after_softmax.bias,
        )
        return join_heads(mixed)


class ClassAttention(nn.Module):
    """Attention from a few tokens to the frozen patches, eq. 3.8 to 3.12; only the tokens are asked for.

    `class_in_keys` puts the tokens themselves among the keys, as CaiT does (supplement A.3 tries without).
    """

    def __init__(self, dim: int, *, num_heads: int, bias: bool = True, class_in_keys: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.class_in_keys = class_in_keys
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        seen = torch.cat([tokens, patches], dim=1) if self.class_in_keys else patches
        query, key, value = (
            split_heads(layer(x), self.num_heads)
            for layer, x in ((self.query, tokens), (self.key, seen), (self.value, seen))
        )
        return self.proj(join_heads(dot_product_attention(query, key, value)))
