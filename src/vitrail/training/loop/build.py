"""From a recipe to the optimizer and the schedule of a stage, and what recomputes its blocks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.heads.embed import trunk_of
from vitrail.models.contract import Model
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.settings.recipe import Recipe
from vitrail.training.loop import optimizer as optimizers
from vitrail.training.loop.schedule import Schedule

_MAX_WARMUP_SHARE = 0.5  # of a run that was made shorter than its recipe


def make_optimizer(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """The optimizer at the recipe's highest learning rate."""
    settings = recipe.optimizer
    return optimizers.make_optimizer(
        model,
        optimizers.OptimizerSettings(
            name=settings.name,
            lr=recipe.lr,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            eps=settings.eps,
            momentum=settings.momentum,
            layer_decay=settings.layer_decay,
        ),
    )


def make_schedule(recipe: Recipe, *, steps_per_epoch: int, total_steps: int) -> Schedule:
    """The learning rate of every step; a warmup that a short run has no room for is shortened."""
    settings = recipe.schedule
    warmup = min(round(settings.warmup_epochs * steps_per_epoch), int(_MAX_WARMUP_SHARE * total_steps))
    is_step, is_cosine = settings.kind == "step", settings.kind == "cosine"
    decay_steps = max(1, round((settings.decay_epochs or 30.0) * steps_per_epoch)) if is_step else None
    return Schedule(
        lr=recipe.lr,
        total_steps=total_steps,
        kind=settings.kind,
        warmup_steps=warmup,
        warmup_lr=min(settings.warmup_lr, recipe.lr),
        min_lr=min(settings.min_lr, recipe.lr) if is_cosine else 0.0,
        decay_steps=decay_steps,
        decay_rate=settings.decay_rate if is_step else None,
    )


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
