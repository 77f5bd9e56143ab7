"""Exact forms of talking-heads attention (thesis 3.7, after Shazeer et al.) that differ in speed and memory only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_ROUND = 64  # numbers between which maps begin in memory: whole lines of a cache


@dataclass(frozen=True)
class HeadMixing:
    """The two linear maps over the heads, one before and one after the softmax."""

    before_weight: Tensor  # [heads, heads], output by input as in nn.Linear
    before_bias: Tensor  # [heads]
    after_weight: Tensor  # [heads, heads]
    after_bias: Tensor  # [heads]

    def to(self, dtype: torch.dtype) -> "HeadMixing":
        return HeadMixing(
            before_weight=self.before_weight.to(dtype),
            before_bias=self.before_bias.to(dtype),
            after_weight=self.after_weight.to(dtype),
            after_bias=self.after_bias.to(dtype),
        )


@dataclass(frozen=True)
class Tiling:
    """How the maps are cut into tiles."""

    images: int  # images in one tile
    rows: int  # queries in one tile; all of them when a tile has several images
    is_mixed_by_row: bool  # one small product over the heads per query, else one for the whole tile


class Gradients(NamedTuple):
    """The gradients of the inputs of talking-heads attention, in their order.

    A bias before the softmax moves a whole row of scores: it changes nothing and its gradient is zero.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    before_weight: Tensor
    before_bias: Tensor
    after_weight: Tensor
    after_bias: Tensor


def attend_plain(query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing) -> Tensor:
    """The definition, in batched products that every device, compiler and exporter understands."""
    mixing = mixing.to(query.dtype)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    scores = (mixing.before_weight @ scores.flatten(2) + mixing.before_bias[:, None]).view(scores.shape)
    attention = scores.softmax(dim=-1)
    attention = (mixing.after_weight @ attention.flatten(2) + mixing.after_bias[:, None]).view(scores.shape)
    return attention @ value


def attend_recorded(query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing) -> Tensor:
    """The form for graphs of models that are no longer trained: nothing passes over the maps but products and softmax.

    `mixing.before_weight` must hold the scale of the scores. The bias before the softmax changes nothing; the one after
    it is added to the sums of values. Products are of three axes: those of four are recorded with copies around them.
    """
    mixing = mixing.to(query.dtype)
    batch, heads, length, head_dim = query.shape
    before, after = (each.expand(batch, -1, -1) for each in (mixing.before_weight, mixing.after_weight))
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)).view(batch, heads, -1)
    attention = torch.bmm(before, scores).view(batch * heads, length, -1).softmax(dim=-1)
    attention = torch.bmm(after, attention.view(batch, heads, -1)).view(batch * heads, length, -1)
    sums = torch.bmm(attention, value.flatten(0, 1)).view(batch, heads, length, head_dim)
    return sums + (value.sum(dim=2) * mixing.after_bias[:, None])[:, :, None]


def attend_fused(query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing) -> Tensor:
    """Plain attention with `heads` heads of full width: no map is ever stored, for `heads` times the products.

    `sum_i W[j,i] q_i k_i^T` is the product of the query `[W[j,1] q_1, ..., W[j,h] q_h]` and all the keys, and
    `sum_i W[j,i] A_i v_j` is a sum over the outputs of the `A_i` on all the values.
    """
    _, heads, _, head_dim = query.shape
    mixing = mixing.to(query.dtype)
    wide_query = (query.transpose(1, 2)[:, None] * mixing.before_weight[:, None, :, None]).flatten(3)
    wide_key = key.transpose(1, 2).flatten(2)[:, None].expand(-1, heads, -1, -1)
    wide_value = value.transpose(1, 2).flatten(2)[:, None].expand(-1, heads, -1, -1)
    outputs = functional.scaled_dot_product_attention(wide_query, wide_key, wide_value, scale=head_dim**-0.5)
    outputs = outputs.unflatten(3, (heads, head_dim)) * mixing.after_weight.t()[:, None, :, None]
    return (outputs.sum(dim=1) + _bias_of_sum(value, mixing.after_bias)).transpose(1, 2)


def attend_whole(query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing) -> Tensor:
    """One image after the other in few large products: for maps that fit into the cache, and no gradients.

    `mixing.before_weight` must hold the scale of the scores.
    """
    _, heads, length, head_dim = query.shape
    maps = query.new_empty(2, heads, length * key.shape[2])
    first, second = maps[0], maps[1]
    scores, mixed = first.view(heads, length, -1), second.view(heads, length, -1)
    output = query.new_empty(query.shape[0], length, heads, head_dim)
    bias = _bias_of_sum(value, mixing.after_bias)
    for image in range(query.shape[0]):
        torch.bmm(query[image], key[image].transpose(1, 2), out=scores)
        torch.mm(mixing.before_weight, first, out=second)
        torch.softmax(mixed, dim=-1, out=mixed)
        torch.mm(mixing.after_weight, second, out=first)
        torch.add(torch.bmm(scores, value[image]).transpose(0, 1), bias[image], out=output[image])
    return output.transpose(1, 2)


def attend_tiled(
    query: Tensor, *, key: Tensor, value: Tensor, mixing: HeadMixing, tiling: Tiling, kept: "KeptMaps | None" = None
) -> Tensor:
    """Products on tiles of the maps that are small enough to stay in cache; the maps are kept where `kept` is given."""
    batch, heads, length, head_dim = query.shape
    scale = head_dim**-0.5
    mixing = mixing.to(query.dtype)
    weights = (mixing.before_weight, mixing.after_weight)
    workspace = _Workspace(key, weights=weights, tiling=tiling, num_buffers=2)
    output = query.new_empty(batch, length, heads, head_dim)
    bias = _bias_of_sum(value, mixing.after_bias)
    tokens = (_by_head(each, tiling.images) for each in (query, key, value))
    others = (each.split(tiling.images) for each in (bias, output))
    for queries, keys, values, add, image_output in zip(*tokens, *others, strict=True):
        for row_queries, row_output in _by_rows(queries, image_output, rows=tiling.rows):
            tile = workspace.tile(row_queries)
            scores, attention, mixed = tile.head_major[0], tile.group_major[1], tile.group_major[0]
            if kept is not None:
                scores, attention, mixed = kept.add(workspace, row_queries)
            before_weight, after_weight = tile.weights
            _multiply(row_queries, keys.transpose(1, 2), scale=scale, out=scores.by_head)
            torch.bmm(before_weight, scores.by_group, out=attention.by_group)
            torch.softmax(attention.lines, dim=-1, out=attention.lines)
            torch.bmm(after_weight, attention.by_group, out=mixed.by_group)
            torch.bmm(mixed.by_head, values, out=tile.sums)
            torch.add(tile.sums_by_image, add, out=row_output)
    return output.transpose(1, 2)


def differentiate_tiled(
    gradient: Tensor,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixing: HeadMixing,
    tiling: Tiling,
    kept: "KeptMaps | None" = None,
) -> Gradients:
    """The gradients of the inputs from that of the output, tile by tile.

    The maps are computed once more, or are those that the same tiling has kept: that changes no bit.
    """
    batch, heads, length, head_dim = query.shape
    scale = head_dim**-0.5
    mixing = mixing.to(query.dtype)
    weights = (mixing.before_weight, mixing.after_weight, mixing.before_weight.t(), mixing.after_weight.t())
    workspace = _Workspace(key, weights=weights, tiling=tiling, num_buffers=4)
    maps = iter(kept.tiles if kept is not None else ())
    query_gradient = query.new_empty(batch, length, heads, head_dim)
    key_gradient = key.new_empty(batch, key.shape[2], heads, head_dim)
    value_gradient = torch.empty_like(key_gradient)
    before_gradient = torch.zeros(heads, heads, dtype=_accumulator_dtype(query), device=query.device)
    after_gradient = torch.zeros_like(before_gradient)
    bias = _bias_of_sum(gradient, mixing.after_bias)
    tokens = (_by_head(each, tiling.images) for each in (query, key, value, gradient))
    others = (each.split(tiling.images) for each in (bias, query_gradient, key_gradient, value_gradient))
    for queries, keys, values, gradients, add, query_out, key_out, value_out in zip(*tokens, *others, strict=True):
        key_sum, value_sum = workspace.sums(keys)
        by_rows = _by_rows(queries, gradients, query_out, rows=tiling.rows)
        for part, (row_queries, row_gradients, row_out) in enumerate(by_rows):
            keep = min(part, 1)  # the first part overwrites the sums of the images before
            tile = workspace.tile(row_queries)
            before_weight, after_weight, before_transposed, after_transposed = tile.weights
            if kept is None:
                scores, attention, mixed = tile.head_major[0], tile.group_major[1], tile.group_major[2]
                _multiply(row_queries, keys.transpose(1, 2), scale=scale, out=scores.by_head)
                torch.bmm(before_weight, scores.by_group, out=attention.by_group)
                torch.softmax(attention.lines, dim=-1, out=attention.lines)
                torch.bmm(after_weight, attention.by_group, out=mixed.by_group)
            else:
                scores, attention, mixed = next(maps)
            value_sum.baddbmm_(mixed.by_head.transpose(1, 2), row_gradients, beta=keep)

            # From here on, a buffer is taken again as soon as what it holds has been used for the last time.
            mixed_gradient, attention_gradient = tile.head_major[3], tile.group_major[2]
            torch.bmm(row_gradients, values.transpose(1, 2), out=mixed_gradient.by_head)
            after_gradient += _correlate(mixed_gradient, attention)
            torch.bmm(after_transposed, mixed_gradient.by_group, out=attention_gradient.by_group)
            lines = attention_gradient.lines
            torch._softmax_backward_data(lines, attention.lines, -1, lines.dtype, grad_input=lines)
            before_gradient += _correlate(attention_gradient, scores)

            scores_gradient = tile.group_major[3]
            torch.bmm(before_transposed, attention_gradient.by_group, out=scores_gradient.by_group)
            _multiply(scores_gradient.by_head, keys, scale=scale, out=tile.sums)
            row_out.copy_(tile.sums_by_image)
            key_sum.baddbmm_(scores_gradient.by_head.transpose(1, 2), row_queries, beta=keep, alpha=scale)
        key_out.copy_(_by_image(key_sum, heads))
        torch.add(_by_image(value_sum, heads), add, out=value_out)
    return Gradients(
        query=query_gradient.transpose(1, 2),
        key=key_gradient.transpose(1, 2),
        value=value_gradient.transpose(1, 2),
        before_weight=before_gradient,
        before_bias=torch.zeros_like(mixing.before_bias),
        after_weight=after_gradient,
        after_bias=(gradient.sum(dim=2) * value.sum(dim=2)).sum(dim=(0, 2)),
    )


def _multiply(first: Tensor, second: Tensor, *, scale: float, out: Tensor) -> None:
    torch.baddbmm(out, first, second, beta=0, alpha=scale, out=out)


def _bias_of_sum(tokens: Tensor, bias: Tensor) -> Tensor:  # [batch, 1, heads, head_dim]
    """What a bias on every entry of the maps adds to their product with the tokens."""
    return (tokens.sum(dim=2) * bias[:, None])[:, None]


def _by_head(tokens: Tensor, images: int) -> Iterable[Tensor]:  # each [heads * images, length, head_dim]
    if images == 1:
        return tokens.unbind(0)
    return (chunk.transpose(0, 1).flatten(0, 1) for chunk in tokens.split(images))


def _by_rows(*tensors: Tensor, rows: int) -> Iterable[tuple[Tensor, ...]]:
    if rows >= tensors[0].shape[1]:
        return (tensors,)
    return zip(*(tensor.split(rows, dim=1) for tensor in tensors), strict=True)


def _by_image(tokens: Tensor, heads: int) -> Tensor:  # [images, length, heads, head_dim]
    return tokens.view(heads, -1, *tokens.shape[1:]).permute(1, 2, 0, 3)


def _accumulator_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


class _Maps(NamedTuple):
    """Views of the maps of one tile in one buffer."""

    by_head: Tensor  # [heads * images, rows, length], for products with tokens
    by_group: Tensor  # [groups, heads, columns], for products over the heads
    lines: Tensor  # [heads * images * rows, length], in the order of the memory


def _correlate(first: _Maps, second: _Maps) -> Tensor:  # [heads, heads]
    """The inner products of all pairs of maps."""
    products = torch.bmm(first.by_group, second.by_group.transpose(1, 2))
    return products.sum(dim=0, dtype=_accumulator_dtype(products))


class KeptMaps:
    """Scores, attention and mixed attention of every tile, in memory that is given."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.tiles: list[tuple[_Maps, _Maps, _Maps]] = []
        self._used = 0

    @staticmethod
    def count(query: Tensor, *, key: Tensor) -> int:
        """How many numbers the maps have, with room for each to begin at a round address."""
        batch, heads, length, _ = query.shape
        return 3 * batch * (heads * length * key.shape[2] + _ROUND * length)

    def add(self, workspace: "_Workspace", queries: Tensor) -> tuple[_Maps, _Maps, _Maps]:
        """Views for the maps of the next tile."""
        elements = queries.shape[0] * queries.shape[1] * workspace.length
        step = -(-elements // _ROUND) * _ROUND
        starts = [self._used + part * step for part in range(3)]
        self._used += 3 * step
        scores, attention, mixed = (self.memory[start : start + elements] for start in starts)
        groups = queries.shape[1] if workspace.tiling.is_mixed_by_row else 1
        maps = (
            workspace.view_head_major(scores, queries, groups),
            workspace.view_group_major(attention, queries, groups),
            workspace.view_group_major(mixed, queries, groups),
        )
        self.tiles.append(maps)
        return maps


class _Tile(NamedTuple):
    """The maps of one tile in each of the buffers, head after head or group after group, and weights to mix them."""

    head_major: list[_Maps]
    group_major: list[_Maps]
    weights: list[Tensor]  # each [groups, heads, heads]
    sums: Tensor  # [heads * images, rows, head_dim], the product of maps and tokens
    sums_by_image: Tensor  # [images, rows, heads, head_dim], a view of the same


class _Workspace:
    """Buffers that every tile uses again, so that the maps stay in cache."""

    def __init__(self, key: Tensor, *, weights: tuple[Tensor, ...], tiling: Tiling, num_buffers: int) -> None:
        _, self.heads, self.length, _ = key.shape
        elements = tiling.images * self.heads * tiling.rows * self.length
        self.weights = weights
        self.tiling = tiling
        self.buffers = [key.new_empty(elements) for _ in range(num_buffers)]
        self.tiles: dict[torch.Size, _Tile] = {}
        self.key_sums: dict[torch.Size, tuple[Tensor, Tensor]] = {}

    def tile(self, queries: Tensor) -> _Tile:  # queries [heads * images, rows, head_dim]
        tile = self.tiles.get(queries.shape)
        if tile is None:
            tile = self.tiles[queries.shape] = self._shape(queries.new_empty(queries.shape))
        return tile

    def sums(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Two uninitialised tensors like the keys."""
        if keys.shape not in self.key_sums:
            self.key_sums[keys.shape] = (keys.new_empty(keys.shape), keys.new_empty(keys.shape))
        return self.key_sums[keys.shape]

    def _shape(self, sums: Tensor) -> _Tile:
        groups = sums.shape[1] if self.tiling.is_mixed_by_row else 1
        used = [buffer[: sums.shape[0] * sums.shape[1] * self.length] for buffer in self.buffers]
        return _Tile(
            head_major=[self.view_head_major(each, sums, groups) for each in used],
            group_major=[self.view_group_major(each, sums, groups) for each in used],
            weights=[weight.expand(groups, -1, -1) for weight in self.weights],
            sums=sums,
            sums_by_image=_by_image(sums, self.heads),
        )

    def view_head_major(self, buffer: Tensor, queries: Tensor, groups: int) -> _Maps:
        """Maps that lie head after head."""
        by_head = buffer.view(queries.shape[0], queries.shape[1], self.length)
        by_group = by_head.view(self.heads, groups, -1).transpose(0, 1)
        return _Maps(by_head, by_group, lines=by_head.view(-1, self.length))

    def view_group_major(self, buffer: Tensor, queries: Tensor, groups: int) -> _Maps:
        """Maps that lie group after group."""
        by_group = buffer.view(groups, self.heads, -1)
        by_head = by_group.transpose(0, 1).view(-1, queries.shape[1], self.length)
        return _Maps(by_head, by_group, lines=by_group.view(-1, self.length))
