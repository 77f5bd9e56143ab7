"""Vision transformers: DeiT, DeiT III and the parallel models (thesis 3.2 to 3.4 and chapter 6; Three things)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.norm import EPSILON
from vitrail.layers.position import LearnedPositions
from vitrail.layers.sample_draws import Dropout
from vitrail.models.backbone import head_of, stem_of
from vitrail.models.contract import Features, to_maps
from vitrail.models.trunk import TrunkConfig, TrunkModel, make_trunk


@dataclass(frozen=True, kw_only=True)
class ViTConfig(TrunkConfig):
    """Settings of a vision transformer."""

    pool: str = "class"  # a class token, or the "average" of the patches
    class_layer: int = 0  # block before which the class token enters (table 3.13)
    class_position: bool = True  # whether the special tokens have a position of their own
    distilled: bool = False  # a distillation token with a head of its own (3.3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("pool", ("class", "average"))
        self.check_counts("class_layer", least=0)
        self.check_flags("class_position", "distilled")
        if self.class_layer >= self.depth:
            raise ValueError(f"class_layer {self.class_layer} must be one of the {self.depth} blocks, counted from 0")
        if self.pool == "average" and (self.distilled or self.class_layer):
            raise ValueError("pool='average' has no class token: leave distilled and class_layer out")

    @property
    def num_tokens(self) -> int:
        """Special tokens beside the patches."""
        return 0 if self.pool == "average" else 1 + self.distilled


class VisionTransformer(TrunkModel):
    """Patches and special tokens through the trunk; the head reads the special tokens, or the patches' average."""

    config: ViTConfig
    family = "vit"
    undecayed_tensors = ("tokens",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.stem = stem_of(config)
        num_tokens = config.num_tokens
        self.drop_patches = Dropout(config.dropout)
        self.drop_tokens = Dropout(config.dropout)
        self.positions = LearnedPositions(
            config.dim,
            grid=self.stem.grid(*config.size),
            num_tokens=num_tokens if config.class_position else 0,
        )
        self.tokens = nn.Parameter(torch.empty(1, num_tokens, config.dim)) if num_tokens else None
        self.blocks = make_trunk(config)
        self.norm = nn.LayerNorm(config.dim, eps=EPSILON)
        self.head = head_of(config, distilled=config.distilled)

    def init_weights(self) -> None:
        super().init_weights()
        if self.tokens is not None:
            nn.init.trunc_normal_(self.tokens, std=0.02)

    def entry(self) -> list[nn.Parameter]:
        return [*super().entry(), *([] if self.tokens is None else [self.tokens])]

    def insert_tokens(self, patches: Tensor) -> Tensor:
        """Put the special tokens before the patches."""
        assert self.tokens is not None
        tokens = self.tokens if self.positions.tokens is None else self.tokens + self.positions.tokens
        return torch.cat([self.drop_tokens(tokens.expand(patches.shape[0], -1, -1)), patches], dim=1)

    def patches_alone(self, patches: Tensor) -> Tensor:
        x, num_patches = patches, patches.shape[1]
        for index, block in enumerate(self.blocks):
            x = block(self.insert_tokens(x) if self.tokens is not None and index == self.config.class_layer else x)
        return self.norm(x[:, -num_patches:])

    def features_behind_stem(self, patches: Tensor, *, levels: Sequence[int] = ()) -> Features:
        wanted = self.check_levels(levels)
        x, grid = self.place(patches)
        num_patches, maps = x.shape[1], {}
        for index, block in enumerate(self.blocks):
            if self.tokens is not None and index == self.config.class_layer:
                x = self.insert_tokens(x)
            x = block(x)
            if index in wanted:
                maps[index] = to_maps(x[:, -num_patches:], grid)
        x = self.norm(x)
        normed = x[:, -num_patches:]
        summary = x[:, :-num_patches] if self.tokens is not None else normed.mean(dim=1, keepdim=True)
        return Features(summary, to_maps(normed, grid), tuple(maps[level] for level in wanted))

    def summarize(self, images: Tensor) -> Tensor:
        """The summary tokens of `features`; the last block computes them only, because nothing reads its patches."""
        if self.tokens is None:
            return self.features(images).summary
        x, _ = self.embed(images)
        for index, block in enumerate(self.blocks):
            if index == self.config.class_layer:
                x = self.insert_tokens(x)
            if index < len(self.blocks) - 1:
                x = block(x)
        num_tokens = self.tokens.shape[1]
        return self.norm(self.blocks[-1](x[:, :num_tokens], x[:, num_tokens:]))
