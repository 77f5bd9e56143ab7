"""The backbones of ours: a stem, a row of blocks, a norm and a head, and what follows from that order."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.layers.classifier import make_classifier
from vitrail.layers.grid import Grid
from vitrail.layers.sample_draws import draws_of
from vitrail.layers.stem import Stem, make_stem
from vitrail.models.config import ImageConfig
from vitrail.models.contract import Features, Model, PoolingPass, level_indices
from vitrail.models.following import following
from vitrail.models.parameters import names_of


class Backbone(Model):
    """Images through the stem, the blocks, the class stage if there is one, the norm and the head."""

    config: ImageConfig
    stem: Stem
    norm: nn.Module

    @property
    def patch_size(self) -> int:
        return self.config.patch_size

    @property
    def stem_dim(self) -> int:
        return self.config.dim

    @property
    def num_levels(self) -> int:
        return self.config.depth

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        self.check_levels(levels)
        return self.features_behind_stem(self.stem_patches(images), levels=levels)

    def masked_patches(self, images: Tensor, *, masks: Tensor, token: Tensor) -> Tensor:
        return self.features_behind_stem(replace_masked(self.stem_patches(images), masks, token)).patches

    def stem_patches(self, images: Tensor) -> Tensor:
        """What the stem makes of images, [batch, dim, rows, columns]."""
        self.check_images(images)
        self.stem.grid(*images.shape[-2:])
        return self.stem(images)

    def features_behind_stem(self, patches: Tensor, *, levels: Sequence[int] = ()) -> Features:
        """The features that the blocks make of patches [batch, dim, rows, columns] of the stem."""
        raise NotImplementedError

    def check_levels(self, levels: Sequence[int]) -> list[int]:
        """Indices of blocks, with negative ones counted from the end."""
        return level_indices(levels, count=self.config.depth, of="blocks")

    def patch_grid(self, height: int, width: int) -> Grid:
        return self.stem.grid(height, width)

    def pooling_pass(self, images: Tensor) -> PoolingPass:
        layer: nn.Module = self.norm if self.class_stage is None else self.class_stage
        with following([layer], is_input=layer is self.class_stage) as points:
            logits = self(images)
        grid = self.patch_grid(images.shape[2], images.shape[3])
        return PoolingPass(logits, points[layer], lambda product: product.sum(dim=-1).reshape(-1, *grid))

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def entry(self) -> list[nn.Parameter]:
        """The parameters before the first block."""
        return list(self.stem.parameters())

    def parameter_layers(self) -> dict[str, int]:
        """The layer of every parameter: 0 before the first block, then one a block of the trunk and of the class stage.

        The last layer is the final norm and the head.
        """
        parts: list[list[nn.Parameter]] = [self.entry(), *(list(block.parameters()) for block in self.blocks)]
        if self.class_stage is not None:
            first, *others = (list(block.parameters()) for block in self.class_stage.blocks)
            parts += [[self.class_stage.tokens, *first], *others]
        layers = {id(parameter): layer for layer, part in enumerate(parts) for parameter in part}
        return {name: layers.get(id(parameter), len(parts)) for name, parameter in self.named_parameters()}

    def from_block(self, first: int) -> set[str]:
        if first >= len(self.blocks):
            raise ValueError(f"there are the blocks 0 to {len(self.blocks) - 1}")
        below = [*self.entry(), *(parameter for block in self.blocks[:first] for parameter in block.parameters())]
        return {name for name, _ in self.named_parameters()} - names_of(self, below)

    def recompute_blocks(self) -> None:
        for block in self.blocks:
            block.forward = _recomputed.__get__(block)  # bound, so that a copy of the model has its own


def replace_masked(patches: Tensor, masks: Tensor, token: Tensor) -> Tensor:
    """Patches [batch, dim, rows, columns] with the token [dim] where masks [batch, rows, columns] are true."""
    return torch.where(masks.unsqueeze(1), token.to(patches.dtype).view(1, -1, 1, 1), patches)


def _recomputed(block: nn.Module, *inputs: Tensor) -> Any:
    """The forward pass of a block that keeps its inputs only; computed again, it draws what it drew before."""
    draws = draws_of(block)
    if draws is None or not draws.is_narrowed:
        return checkpoint(type(block).forward, block, *inputs, use_reentrant=False)
    passes = draws.passes
    return checkpoint(
        type(block).forward,
        block,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), draws.as_of(passes)),
    )


def stem_of(config: ImageConfig) -> Stem:
    """The stem a config asks for; an image that can't be cut is refused here, before anything is built."""
    stem = make_stem(config.stem, in_channels=config.in_channels, dim=config.dim, patch_size=config.patch_size)
    stem.grid(*config.size)
    return stem


def head_of(config: ImageConfig, *, distilled: bool = False, per_class: bool = False) -> nn.Module:
    """The classifier that fits the summary tokens of a config."""
    return make_classifier(
        config.dim,
        num_classes=config.num_classes,
        kind=config.classifier,
        distilled=distilled,
        per_class=per_class,
    )
