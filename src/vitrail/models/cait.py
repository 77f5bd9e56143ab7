"""CaiT: deep self-attention among patches, then class-attention (thesis 3.5 to 3.7)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.layers.attention import ClassAttention
from vitrail.layers.mlp import FeedForward
from vitrail.layers.norm import EPSILON
from vitrail.layers.pooling import ClassStage
from vitrail.layers.position import LearnedPositions
from vitrail.layers.residual import Block, Branch, Residual
from vitrail.layers.sample_draws import Dropout
from vitrail.models.backbone import head_of, stem_of
from vitrail.models.contract import Features, to_maps
from vitrail.models.trunk import TrunkConfig, TrunkModel, layer_scale_of, make_trunk


@dataclass(frozen=True, kw_only=True)
class CaiTConfig(TrunkConfig):
    """Settings of a CaiT."""

    talking_heads: bool = True
    class_depth: int = 2  # blocks of the class-attention stage; 0: average of the patches
    class_in_keys: bool = True  # class-attention also looks at the class token itself
    class_layer_scale: bool = True  # LayerScale in the class-attention stage, with residual="scalar" too
    distilled: bool = False  # a distillation token, inserted with the class token

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("class_depth", least=0)
        self.check_flags("class_in_keys", "class_layer_scale", "distilled")
        if self.class_depth == 0 and self.distilled:
            raise ValueError("distilled=True needs a class-attention stage: pass class_depth of at least 1")
        if self.class_depth == 0 and not (self.class_in_keys and self.class_layer_scale):
            raise ValueError("class_depth=0 has no class-attention: leave class_in_keys and class_layer_scale out")


def make_class_block(config: CaiTConfig) -> Block:
    """Class-attention and a feed-forward network, for the special tokens only; no stochastic depth here."""

    def residual(mix: nn.Module) -> Residual:
        scale = layer_scale_of(config) if config.class_layer_scale else None
        return Residual([Branch(norm=nn.LayerNorm(config.dim, eps=EPSILON), mix=mix, scale=scale)])

    attention = ClassAttention(config.dim, num_heads=config.num_heads, class_in_keys=config.class_in_keys)
    feed_forward = FeedForward(config.dim, hidden_dim=int(config.dim * config.mlp_ratio))
    return Block(communication=residual(attention), feed_forward=residual(feed_forward))


class CaiT(TrunkModel):
    """Self-attention among patches with no class token, then a stage where only the class token changes."""

    config: CaiTConfig
    family = "cait"

    def __init__(self, config: CaiTConfig) -> None:
        super().__init__(config)
        self.stem = stem_of(config)
        self.drop_patches = Dropout(config.dropout)
        self.positions = LearnedPositions(config.dim, grid=self.stem.grid(*config.size))
        self.blocks = make_trunk(config)
        self.class_stage = (
            ClassStage(
                config.dim,
                num_tokens=1 + config.distilled,
                blocks=[make_class_block(config) for _ in range(config.class_depth)],
            )
            if config.class_depth
            else None
        )
        self.norm = nn.LayerNorm(config.dim, eps=EPSILON)
        self.head = head_of(config, distilled=config.distilled)

    def patches_alone(self, patches: Tensor) -> Tensor:
        for block in self.blocks:
            patches = block(patches)
        return self.norm(patches)

    def features_behind_stem(self, patches: Tensor, *, levels: Sequence[int] = ()) -> Features:
        wanted = self.check_levels(levels)
        x, grid = self.place(patches)
        maps = {}
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in wanted:
                maps[index] = to_maps(x, grid)
        normed = to_maps(self.norm(x), grid)
        return Features(self.pool(x), normed, tuple(maps[level] for level in wanted))

    def summarize(self, images: Tensor) -> Tensor:
        x, _ = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.pool(x)

    def pool(self, patches: Tensor) -> Tensor:
        """The special tokens after the class-attention stage, or the patches' average without one."""
        if self.class_stage is None:
            return self.norm(patches).mean(dim=1, keepdim=True)
        return self.norm(self.class_stage(patches))
