"""Attention by scaled dot products, in the type in which the device is fastest."""

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.layers.bfloat16 import has_bfloat16_tiles
from vitrail.layers.recording import is_recorded

_MANY_KEYS = 512  # measured: with more, a CPU is faster in bfloat16


def dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """softmax(query key^T / sqrt(head_dim) + mask) value, for tokens of [batch, heads, length, head_dim].

    torch's backward pass in bfloat16 is up to eight times as slow as in float32 on a CPU without matrix units for it.
    """
    if not _is_slow(query, key=key):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    with torch.autocast("cpu", enabled=False):
        wide_mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        wide = functional.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), attn_mask=wide_mask, is_causal=is_causal
        )
    return wide.to(query.dtype)


def _is_slow(query: Tensor, *, key: Tensor) -> bool:
    """Whether torch's own way is slow: eagerly, in bfloat16, on a CPU that has only vectors for it."""
    if query.device.type != "cpu" or query.dtype != torch.bfloat16 or key.shape[2] > _MANY_KEYS:
        return False
    return not (is_recorded() or has_bfloat16_tiles())
