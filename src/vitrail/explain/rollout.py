"""Attention rollout: how much of each patch reaches the special tokens if attention is followed through all layers.

After Abnar and Zuidema (arXiv 2005.00928): in every layer a token is taken to keep half of itself and to fetch the
other half by the mean attention of the heads.
"""

from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.explain.attention_rows import Attention, attention_rows, find_attentions, record, run
from vitrail.models.cait import CaiT
from vitrail.models.contract import Model
from vitrail.models.vit import VisionTransformer


class Rollout(NamedTuple):
    """What of the first layer's tokens has arrived in the special tokens; a row and its rest sum to one."""

    rows: Tensor  # [batch, tokens, patches]
    rest: Tensor  # [batch, tokens]: what has stayed among the special tokens
    logits: Tensor
    grid: tuple[int, int]


def offers_rollout(model: Model) -> bool:
    """Whether there is attention in all layers and a special token at their end."""
    if isinstance(model, VisionTransformer):
        return model.tokens is not None
    return isinstance(model, CaiT) and model.class_stage is not None


def roll_out(model: Model, images: Tensor) -> Rollout:
    """One forward pass in which the maps of each layer are multiplied to those before."""
    trail = _Trail()
    blocks = [*model.blocks, *(model.class_stage.blocks if isinstance(model, CaiT) and model.class_stage else ())]
    with ExitStack() as stack:
        for block in blocks:
            attentions = find_attentions(block.communication)
            stack.enter_context(record(attentions, trail.note))
            handle = block.communication.register_forward_hook(trail.advance)
            stack.callback(handle.remove)
        logits, grid = run(model, images)
    num_patches = grid[0] * grid[1]
    assert trail.flow is not None
    tokens = trail.flow[:, : trail.flow.shape[2] - num_patches]  # they come first
    return Rollout(tokens[:, :, -num_patches:], rest=tokens[:, :, :-num_patches].sum(dim=2), logits=logits, grid=grid)


class _Trail:
    """What of the first tokens has arrived in each token so far: rows sum to one."""

    def __init__(self) -> None:
        self.flow: Tensor | None = None  # [batch, tokens and patches, first tokens and patches]
        self.rows: list[Tensor] = []  # of the attentions of this layer

    def note(self, attention: Attention, tokens: Tensor, context: Tensor | None) -> None:
        """Take a map in: the mean of its heads, as a distribution also where talking heads have made it none."""
        rows = attention_rows(attention, tokens, context).mean(dim=1).clamp(min=0)
        rows = rows / rows.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        num_seen = tokens.shape[1] + (0 if context is None else context.shape[1])
        if rows.shape[2] < num_seen:  # class-attention without the class among its keys
            rows = torch.cat([rows.new_zeros(*rows.shape[:2], num_seen - rows.shape[2]), rows], dim=2)
        self.rows.append(rows)

    def advance(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Multiply by the map of the layer that has just ended."""
        rows = torch.stack(self.rows).mean(dim=0)
        self.rows = []
        asking, seen = rows.shape[1:]
        flow = self._widen(rows, num_seen=seen)
        new = 0.5 * flow[:, :asking] + 0.5 * rows @ flow
        self.flow = torch.cat([new, flow[:, asking:]], dim=1)  # what does not ask, as in class-attention, stays

    def _widen(self, rows: Tensor, *, num_seen: int) -> Tensor:
        """The flow so far, with tokens that are new before the others."""
        if self.flow is None:
            return torch.eye(num_seen, device=rows.device).expand(len(rows), -1, -1)
        num_new = num_seen - self.flow.shape[1]
        if num_new == 0:
            return self.flow
        batch, _, first = self.flow.shape
        wide = self.flow.new_zeros(batch, num_seen, num_new + first)
        wide[:, :num_new, :num_new] = torch.eye(num_new, device=rows.device)
        wide[:, num_new:, num_new:] = self.flow
        return wide
