"""Talking-heads attention (thesis 3.7, after Shazeer et al.) in the fastest exact form for its input."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitrail.layers.bfloat16 import has_bfloat16_tiles
from vitrail.layers.kept_memory import KeptMemory, machine_limit
from vitrail.layers.recording import is_recorded
from vitrail.layers.talking_heads_forms import (
    HeadMixing,
    KeptMaps,
    Tiling,
    attend_fused,
    attend_plain,
    attend_tiled,
    differentiate_tiled,
)

# Measured: maps of this size per thread, of which the forward pass holds two and the backward pass four, stay in the
# caches of a CPU and leave each thread enough to do.
CPU_TILE_BYTES = 1 << 20
# On other devices only memory limits a tile.
DEVICE_TILE_BYTES = 1 << 28
# Several images at a time are worth more than mixing row by row from about this number on.
MANY_IMAGES = 4
# The fused form costs `heads` times the products. Low-precision matrix units make up for four heads, but no further;
# and their kernels take heads of up to 256 dimensions.
FUSED_MAX_HEADS = 4
FUSED_MAX_DIM = 256
# Where the maps of a CPU are kept for the backward pass.
MEMORY = KeptMemory(machine_limit())


def talking_heads_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    before_weight: Tensor,
    before_bias: Tensor,
    after_weight: Tensor,
    after_bias: Tensor,
) -> Tensor:
    """Attention whose heads are mixed linearly before and after the softmax.

    Tokens are [batch, heads, length, head_dim], the queries not yet scaled; weights are [heads, heads] as in nn.Linear
    and biases [heads]. In order:

        scores[i]    = query[i] key[i]^T / sqrt(head_dim)
        attention[j] = softmax(sum_i before_weight[j, i] scores[i] + before_bias[j])
        result[k]    = (sum_j after_weight[k, j] attention[j] + after_bias[k]) value[k]

    The result lies in memory as [batch, length, heads, head_dim]: joining its heads with `transpose(1, 2).flatten(2)`
    copies nothing. For the backward pass a CPU keeps the maps up to a share of its memory; beyond it, and elsewhere,
    only the inputs are kept and the maps are computed once more, with the same bits. That pass cannot itself be
    differentiated.
    """
    mixing = HeadMixing(
        before_weight=before_weight, before_bias=before_bias, after_weight=after_weight, after_bias=after_bias
    )
    _check(query, key=key, value=value, mixing=mixing)
    if _needs_plain(query):
        return attend_plain(query, key=key, value=value, mixing=mixing)
    inputs = (query, key, value, before_weight, before_bias, after_weight, after_bias)
    if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
        return _Differentiable.apply(_lend(query, key=key), *inputs)
    return _attend(query, key=key, value=value, mixing=mixing)


def working_dtype(query: Tensor) -> torch.dtype:
    """The type to compute in: a CPU without matrix units for 16-bit products is faster, and exact, in fp32."""
    if query.device.type != "cpu" or query.dtype not in (torch.bfloat16, torch.float16):
        return query.dtype
    return torch.bfloat16 if query.dtype == torch.bfloat16 and has_bfloat16_tiles() else torch.float32


def prefers_fused(query: Tensor) -> bool:
    """Whether the fused form is the fastest for queries that are already in their working type."""
    _, heads, _, head_dim = query.shape
    is_low_precision = query.dtype in (torch.bfloat16, torch.float16)
    return heads == 1 or (is_low_precision and heads <= FUSED_MAX_HEADS and heads * head_dim <= FUSED_MAX_DIM)


def prefers_whole(query: Tensor, *, key: Tensor) -> bool:
    """Whether few products over whole maps are the fastest where nothing is learnt: on a CPU, for maps in its cache."""
    if _needs_plain(query) or query.device.type != "cpu" or query.dtype not in (torch.float32, torch.float64):
        return False
    _, heads, num_queries, _ = query.shape
    return heads * num_queries * key.shape[2] * query.element_size() <= CPU_TILE_BYTES


def plan_tiles(query: Tensor, *, key: Tensor) -> Tiling:
    """Tiles that stay in cache: several small images, one image, or some of its rows."""
    batch, heads, num_queries, _ = query.shape
    is_cpu = query.device.type == "cpu"
    budget = (CPU_TILE_BYTES * torch.get_num_threads() if is_cpu else DEVICE_TILE_BYTES) // query.element_size()
    row_elements = heads * key.shape[2]
    rows = _even_part(num_queries, budget // row_elements)
    images = _even_part(batch, budget // (row_elements * num_queries))
    has_small_products = is_cpu and query.dtype in (torch.float32, torch.float64) and torch.backends.mkl.is_available()
    if has_small_products and budget < MANY_IMAGES * row_elements * num_queries:
        return Tiling(images=1, rows=rows, is_mixed_by_row=True)
    return Tiling(images=images, rows=rows, is_mixed_by_row=False)


def _even_part(total: int, limit: int) -> int:
    """The size of the parts when the total is cut as evenly as possible into parts within the limit."""
    num_parts = -(-total // max(1, limit))
    return -(-total // num_parts)


class _Differentiable(torch.autograd.Function):
    """Talking-heads attention that keeps its inputs, and its maps where there is memory for them."""

    @staticmethod
    def forward(loan: "_Loan | None", query: Tensor, key: Tensor, value: Tensor, *weights: Tensor) -> Tensor:
        kept = None if loan is None else loan.maps
        return _attend(query, key=key, value=value, mixing=HeadMixing(*weights), kept=kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.loan, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs: tuple[Tensor, ...] = ctx.saved_tensors
        dtype = working_dtype(inputs[0])
        query, key, value = (each.to(dtype) for each in inputs[:3])
        with _without_autocast(query):
            gradients = differentiate_tiled(
                gradient.to(dtype),
                query=query,
                key=key,
                value=value,
                mixing=HeadMixing(*inputs[3:]),
                tiling=plan_tiles(query, key=key),
                kept=None if ctx.loan is None else ctx.loan.maps,
            )
        return None, *(each.to(like.dtype) for each, like in zip(gradients, inputs, strict=True))


class _Loan:
    """Maps in memory that goes back when nothing needs them any more."""

    def __init__(self, memory: Tensor) -> None:
        self.maps = KeptMaps(memory)

    def __del__(self) -> None:
        MEMORY.give_back(self.maps.memory)


def _lend(query: Tensor, *, key: Tensor) -> _Loan | None:
    """Memory for the maps, on a CPU whose tiles are the same in both passes and which has enough of it."""
    dtype = working_dtype(query)
    if query.device.type != "cpu" or prefers_fused(query.to(dtype)):
        return None
    memory = MEMORY.take(KeptMaps.count(query, key=key), dtype)
    return None if memory is None else _Loan(memory)


def _attend(query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing, kept: KeptMaps | None = None) -> Tensor:
    dtype, result_dtype = working_dtype(query), query.dtype
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    with _without_autocast(query):
        if prefers_fused(query):
            output = attend_fused(query, key=key, value=value, mixing=mixing)
        else:
            tiling = plan_tiles(query, key=key)
            output = attend_tiled(query, key=key, value=value, mixing=mixing, tiling=tiling, kept=kept)
    return output.to(result_dtype)


def _without_autocast(query: Tensor) -> AbstractContextManager[Any]:
    """The types are chosen here; autocast must not change them again."""
    if torch.is_autocast_enabled(query.device.type):
        return torch.autocast(query.device.type, enabled=False)
    return nullcontext()


def _needs_plain(query: Tensor) -> bool:
    """Whether the computation is only recorded, or there is nothing to compute."""
    return is_recorded() or query.device.type == "meta" or query.numel() == 0


def _check(query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing) -> None:
    batch, heads, _, head_dim = query.shape
    if key.shape != value.shape or (key.shape[0], key.shape[1], key.shape[3]) != (batch, heads, head_dim):
        shapes = ", ".join(str(list(each.shape)) for each in (query, key, value))
        raise ValueError(f"query, key and value must be [batch, heads, length, head_dim] alike, not {shapes}")
    for weight in (mixing.before_weight, mixing.after_weight):
        if weight.shape != (heads, heads):
            raise ValueError(f"mixing weights for {heads} heads must be [{heads}, {heads}], not {list(weight.shape)}")
