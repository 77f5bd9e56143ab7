"""Recomputing the blocks of a model in the backward pass."""

from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.heads.embed import trunk_of
from vitrail.models.contract import Model
from vitrail.models.timm_backbone import TimmBackbone


def enable_checkpointing(model: Model) -> None:
    """Recompute each block in the backward pass instead of keeping what is inside it."""
    trunk = trunk_of(model)
    if isinstance(trunk, TimmBackbone):
        if not hasattr(trunk.backbone, "set_grad_checkpointing"):
            raise ValueError(f"{model.name} can't recompute its blocks: leave run.checkpointing out")
        trunk.backbone.set_grad_checkpointing()
        return
    for block in trunk.blocks:
        block.forward = _recomputed.__get__(block)  # bound, so that a copy of the model has its own


def _recomputed(block: nn.Module, *inputs: Tensor) -> Any:
    """The forward pass of a block that keeps its inputs only."""
    return checkpoint(type(block).forward, block, *inputs, use_reentrant=False)
