"""Masked image modelling: what a trunk says about patches that it has not seen (BEiT; with a decoder MAE)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.heads.around_trunk import AroundTrunk
from vitrail.layers.grid import Grid
from vitrail.layers.norm import EPSILON
from vitrail.layers.position import LearnedPositions
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import Model, initialize
from vitrail.models.trunk import TrunkConfig, make_trunk


@dataclass(frozen=True, kw_only=True)
class DecoderSettings(CheckedSettings):
    """Settings of the small transformer that reads the visible patches (MAE, section 3)."""

    dim: int = 512
    depth: int = 8
    num_heads: int = 16

    def __post_init__(self) -> None:
        self.check_counts("dim", "depth", "num_heads")
        if self.dim % self.num_heads:
            raise ValueError(f"the decoder's dim {self.dim} must be a multiple of its {self.num_heads} heads")


class MaskDecoder(nn.Module):
    """Visible patches and a token at every masked place, through a few blocks; positions are learnt."""

    undecayed_tensors = ("token",)

    def __init__(self, in_dim: int, *, settings: DecoderSettings, grid: Grid) -> None:
        super().__init__()
        dim = settings.dim
        self.embed = nn.Linear(in_dim, dim)
        self.token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = LearnedPositions(dim, grid=grid)
        config = TrunkConfig(dim=dim, depth=settings.depth, num_heads=settings.num_heads, num_classes=0)
        self.blocks = make_trunk(config)
        self.norm = nn.LayerNorm(dim, eps=EPSILON)

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, visible: Tensor, order: Tensor) -> Tensor:
        """What it makes of the masked places, [batch, masked, dim].

        `order` [batch, patches] are the places of the visible patches [batch, visible, in_dim], then the masked ones.
        """
        num_masked = order.shape[1] - visible.shape[1]
        x = torch.cat([self.embed(visible), self.token.expand(len(visible), num_masked, -1)], dim=1)
        positions = self.positions.patches.expand(len(visible), -1, -1)
        x = x + positions.gather(1, order.unsqueeze(2).expand(-1, -1, x.shape[2]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x[:, -num_masked:])


class MaskedModel(AroundTrunk):
    """A trunk that sees images with some of their patches masked, and a linear layer that says what these are.

    Without a decoder a learned token takes the place of a masked patch behind the stem, and the trunk computes all
    places. With one the trunk computes the visible patches alone, and the decoder tells the others from them. Every
    image has the same number of masked patches. A class stage behind the blocks has no part in it and keeps its
    initial weights.
    """

    family = "masked"
    undecayed_tensors = ("token",)

    def __init__(
        self, trunk: Model, *, grid: Grid, num_masked: int, num_outputs: int, decoder: DecoderSettings | None = None
    ) -> None:
        super().__init__(trunk)
        assert trunk.stem_dim is not None, "the task refuses a trunk without patches"
        self.num_masked = num_masked
        if trunk.class_stage is not None:
            trunk.class_stage.requires_grad_(False)
        self.decoder = self.token = None
        if decoder is None:
            self.token = nn.Parameter(torch.empty(trunk.stem_dim))
        else:
            self.decoder = MaskDecoder(trunk.stem_dim, settings=decoder, grid=grid)
        self.head = nn.Linear(trunk.stem_dim if decoder is None else decoder.dim, num_outputs)
        self.follow_trunk()

    def init_heads(self) -> None:
        initialize(self.head)
        if self.decoder is not None:
            initialize(self.decoder)
        if self.token is not None:
            nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, images: Tensor, masks: Tensor | None = None) -> Tensor:
        """Outputs [batch, masked, outputs] at the masked places, in their order; without masks the trunk's answer."""
        if masks is None:
            return self.trunk_vectors(images)
        order = places_by_mask(masks)
        visible, masked = order.split([order.shape[1] - self.num_masked, self.num_masked], dim=1)
        if self.decoder is not None:
            return self.head(self.decoder(self.trunk.visible_patches(images, kept=visible), order))
        assert self.token is not None
        patches = self.trunk.masked_patches(images, masks=masks, token=self.token).flatten(2).transpose(1, 2)
        return self.head(patches.gather(1, masked.unsqueeze(2).expand(-1, -1, patches.shape[2])))


def places_by_mask(masks: Tensor) -> Tensor:
    """Places [batch, patches] of the visible patches, then of the masked ones, both in reading order."""
    return masks.flatten(1).int().argsort(dim=1, stable=True)


def at_masked(values: Tensor, masks: Tensor, *, num_masked: int) -> Tensor:
    """Of values [batch, patches, ...] those at the masked places, in the order of a model's outputs."""
    places = places_by_mask(masks)[:, -num_masked:]
    return values.gather(1, places.view(*places.shape, *[1] * (values.ndim - 2)).expand(-1, -1, *values.shape[2:]))
