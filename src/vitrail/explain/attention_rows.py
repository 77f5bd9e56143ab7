"""Rows of attention, computed beside a model's own forward pass and only for the tokens that are asked for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.layers.attention import ClassAttention, SelfAttention, TalkingHeadsAttention, split_heads
from vitrail.models.contract import Model
from vitrail.models.patchconvnet import PatchConvNet
from vitrail.models.vit import VisionTransformer

Attention = SelfAttention | ClassAttention
Taken = TypeVar("Taken")


@dataclass(frozen=True, eq=False)
class Gaze:
    """The layers of a model in which special tokens look at the patches."""

    layers: dict[int, tuple[Attention, ...]]  # index of the layer -> its attentions; the heads of all count on
    tokens: tuple[str, ...]  # "class", and "distillation" where there is such a token; none with a token per class
    shown_layer: int  # the one that tells most

    @property
    def is_per_class(self) -> bool:
        """Whether every class has a token of its own."""
        return not self.tokens

    @property
    def num_heads(self) -> int:
        """Heads of a layer, those of parallel attentions side by side."""
        return sum(attention.num_heads for attention in self.layers[self.shown_layer])


def find_gaze(model: Model) -> Gaze | None:
    """Where the special tokens of a model look at its patches; None if it has none that do.

    Of a class-attention stage the first layer is shown: it is the one most related to the object (CaiT, appendix D).
    Of a ViT it is the last, whose class token the head reads.
    """
    if isinstance(model, VisionTransformer):
        if model.tokens is None:
            return None
        first, last = model.config.class_layer, len(model.blocks) - 1
        layers = {index: find_attentions(model.blocks[index].communication) for index in range(first, last + 1)}
        return Gaze(layers, tokens=_name_tokens(model.tokens.shape[1]), shown_layer=last)
    stage = model.class_stage
    if stage is None:
        return None
    layers = {index: find_attentions(block) for index, block in enumerate(stage.blocks)}
    if not all(layers.values()):  # a class-MLP
        return None
    is_per_class = isinstance(model, PatchConvNet) and model.config.per_class_tokens
    return Gaze(layers, tokens=() if is_per_class else _name_tokens(stage.tokens.shape[1]), shown_layer=0)


def find_attentions(module: nn.Module) -> tuple[Attention, ...]:
    """The attention layers below a module, in the order of their use."""
    return tuple(layer for layer in module.modules() if isinstance(layer, (SelfAttention, ClassAttention)))


def _name_tokens(count: int) -> tuple[str, ...]:
    return ("class", "distillation")[:count]


def run(model: Model, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The logits of the model's own forward pass, [batch, classes], and the grid of its patches."""
    answer, grid = model.answer_with_grid(images)
    return answer if model.config.num_classes else answer[:, :0], grid  # without classes it is the embedding


@contextmanager
def record(
    layers: Sequence[Attention], take: Callable[[Attention, Tensor, Tensor | None], Taken]
) -> Iterator[dict[Attention, Taken]]:
    """While it lasts, what `take` makes of the input (tokens, context or None) of each of the layers.

    The layers compute as ever: their kernels and their results are not touched.
    """
    taken: dict[Attention, Taken] = {}

    def see(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, (SelfAttention, ClassAttention))
        tokens, context = inputs if len(inputs) == 2 else (inputs[0], None)
        taken[layer] = take(layer, tokens, context)

    handles = [layer.register_forward_pre_hook(see) for layer in layers]
    try:
        yield taken
    finally:
        for handle in handles:
            handle.remove()


def attention_rows(
    attention: Attention, tokens: Tensor, context: Tensor | None, *, rows: slice | Tensor = slice(None)
) -> Tensor:
    """How much some of the tokens look at each key, float32 [batch, heads, rows, keys].

    `rows` are tokens, the same for all images or indices [batch, rows]. Each row is a distribution over the keys: the
    tokens, then the context. Only after talking heads, which mix the distributions linearly, it need not be one.
    """
    keys = tokens if context is None else torch.cat([tokens, context], dim=1)
    if isinstance(rows, slice):
        asking = tokens[:, rows]
    else:
        asking = tokens.gather(1, rows[:, :, None].expand(-1, -1, tokens.shape[2]))
    if isinstance(attention, ClassAttention):
        seen = keys if attention.class_in_keys or context is None else context
        query, key = attention.query(asking), attention.key(seen)
    else:
        dim = attention.proj.in_features
        weight, bias = attention.qkv.weight, attention.qkv.bias
        query = functional.linear(asking, weight[:dim], bias[:dim])
        key = functional.linear(keys, weight[dim : 2 * dim], bias[dim : 2 * dim])
    query, key = (split_heads(each, attention.num_heads).float() for each in (query, key))
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if not isinstance(attention, TalkingHeadsAttention):
        return scores.softmax(dim=-1)
    return _mix_heads(_mix_heads(scores, attention.before_softmax).softmax(dim=-1), attention.after_softmax)


def attention_values(attention: Attention, tokens: Tensor, context: Tensor | None) -> Tensor:
    """What the keys of `attention_rows` offer, float32 [batch, heads, keys, head_dim]."""
    keys = tokens if context is None else torch.cat([tokens, context], dim=1)
    if isinstance(attention, ClassAttention):
        value = attention.value(keys if attention.class_in_keys or context is None else context)
    else:
        dim = attention.proj.in_features
        value = functional.linear(keys, attention.qkv.weight[2 * dim :], attention.qkv.bias[2 * dim :])
    return split_heads(value, attention.num_heads).float()


def _mix_heads(maps: Tensor, layer: nn.Linear) -> Tensor:
    """A linear layer over the heads of [batch, heads, rows, keys]."""
    mixed = torch.einsum("ji,birk->bjrk", layer.weight.float(), maps)
    return mixed + layer.bias.float()[:, None, None]
