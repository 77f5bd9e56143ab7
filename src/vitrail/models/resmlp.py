"""ResMLP: residual networks of linear layers across patches and MLPs within them (thesis chapter 4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.layers.grid import Grid, count_of
from vitrail.layers.mixing import CrossPatchLinear, CrossPatchMLP, PatchConvolution
from vitrail.layers.mlp import ACTIVATIONS, FeedForward
from vitrail.layers.norm import make_norm
from vitrail.layers.pooling import ClassLinear, ClassStage
from vitrail.layers.position import LearnedPositions
from vitrail.layers.residual import Block, Branch, LayerScale, PostNorm, Residual
from vitrail.models.backbone import Backbone, head_of, stem_of
from vitrail.models.config import ImageConfig
from vitrail.models.contract import Features, to_maps

COMMUNICATIONS = ("linear", "none", "mlp", "conv", "depthwise", "separable")
CONVOLUTIONS = {"conv": "full", "depthwise": "depthwise", "separable": "separable"}  # their kinds of PatchConvolution
NORMS = ("affine", "layer", "batch")


@dataclass(frozen=True, kw_only=True)
class ResMLPConfig(ImageConfig):
    """Settings of a ResMLP."""

    mlp_ratio: float = 4.0  # hidden width of the feed-forward network over dim
    layer_scale: float = 0.1  # initial value of the scale after a branch
    norm: str = "affine"  # Aff of eq. 4.1, "layer" (table 4.3) or "batch" (4.3.4)
    post_norm: bool = False  # the norm behind the sum of shortcut and branch instead of before the branch (4.3.4)
    activation: str = "gelu"  # or "relu", "silu", "hardswish" (4.3.4)
    positions: bool = False  # learned positions added to the patches (4.3.4, "other analysis")
    communication: str = "linear"  # across patches, one of COMMUNICATIONS (table 4.3)
    pool: str = "average"  # or "class_mlp"
    class_depth: int = 2  # layers of the class-MLP
    distilled: bool = False  # a second head on the pooled features, for a teacher's labels

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("norm", NORMS)
        self.check_choice("activation", tuple(ACTIVATIONS))
        self.check_choice("communication", COMMUNICATIONS)
        self.check_choice("pool", ("average", "class_mlp"))
        self.check_counts("class_depth")
        self.check_flags("distilled", "post_norm", "positions")
        self.check_ratio("mlp_ratio")
        self.check_number("layer_scale")
        if self.pool == "average" and self.class_depth != type(self).class_depth:
            raise ValueError("class_depth is a setting of pool='class_mlp': leave it out with pool='average'")
        if self.norm == "batch" and self.pool == "class_mlp":
            raise ValueError("norm='batch' can't normalise one class token: take pool='average', or norm='layer'")

    @property
    def is_bound_to_size(self) -> bool:
        """Whether a layer is made for one grid of patches."""
        return self.communication in ("linear", "mlp") or self.pool == "class_mlp"


class ResMLP(Backbone):
    """Patches through cross-patch and cross-channel layers; no attention, and no positions but in an ablation.

    The linear cross-patch layer ties the model to its image size; weights move to another one, A's by interpolation.
    With convolutions the patches are [batch, height, width, dim] between the stem and the pooling, of any size.
    """

    config: ResMLPConfig
    family = "resmlp"

    def __init__(self, config: ResMLPConfig) -> None:
        super().__init__(config)
        self.stem = stem_of(config)
        self.positions = LearnedPositions(config.dim, grid=self.grid) if config.positions else None
        self.blocks = nn.ModuleList(self.make_block(rate) for rate in config.drop_path_rates)
        self.norm = make_norm(config.norm, config.dim)
        self.class_stage = (
            ClassStage(config.dim, num_tokens=1, blocks=[self.make_class_block() for _ in range(config.class_depth)])
            if config.pool == "class_mlp"
            else None
        )
        self.head = head_of(config, distilled=config.distilled)

    @property
    def grid(self) -> Grid:
        return self.stem.grid(*self.config.size)

    @property
    def takes_one_size(self) -> bool:
        return self.config.is_bound_to_size

    def make_block(self, drop_path: float) -> nn.Module:
        feed_forward = self.residual(self.feed_forward(), drop_path)
        if self.config.communication == "none":
            return feed_forward
        return Block(communication=self.residual(self.cross_patch(), drop_path), feed_forward=feed_forward)

    def make_class_block(self) -> Block:
        look = self.residual(ClassLinear(count_of(self.grid)), 0.0)
        return Block(communication=look, feed_forward=self.residual(self.feed_forward(), 0.0))

    def residual(self, mix: nn.Module, drop_path: float) -> Residual:
        dim = self.config.dim
        scale, norm = LayerScale(dim, value=self.config.layer_scale), make_norm(self.config.norm, dim)
        if self.config.post_norm:
            branch = Branch(norm=nn.Identity(), mix=mix, scale=scale, drop_path=drop_path)
            return Residual([branch], join=PostNorm(norm))
        return Residual([Branch(norm=norm, mix=mix, scale=scale, drop_path=drop_path)])

    def feed_forward(self) -> FeedForward:
        config = self.config
        return FeedForward(config.dim, hidden_dim=int(config.dim * config.mlp_ratio), activation=config.activation)

    def cross_patch(self) -> nn.Module:
        config, num_patches = self.config, count_of(self.grid)
        if config.communication in CONVOLUTIONS:
            return PatchConvolution(config.dim, kind=CONVOLUTIONS[config.communication])
        if config.communication == "mlp":
            return CrossPatchMLP(num_patches, activation=config.activation)
        return CrossPatchLinear(num_patches)

    def entry(self) -> list[nn.Parameter]:
        return [*super().entry(), *(() if self.positions is None else self.positions.parameters())]

    def stem_patches(self, images: Tensor) -> Tensor:
        self.check_images(images)
        if self.stem.grid(*images.shape[-2:]) != self.grid and self.config.is_bound_to_size:
            height, width = images.shape[-2:]
            raise ValueError(
                f"this ResMLP was made for images of {'x'.join(map(str, self.config.size))}, not {height}x{width}: "
                "create it with that image_size and load the weights"
            )
        return self.stem(images)

    def features_behind_stem(self, patches: Tensor, *, levels: Sequence[int] = ()) -> Features:
        wanted = self.check_levels(levels)
        grid = patches.shape[2], patches.shape[3]
        x = patches.flatten(2).transpose(1, 2)
        if self.positions is not None:
            x = x + self.positions.for_grid(grid)
        if self.config.communication in CONVOLUTIONS:
            x = x.unflatten(1, grid)
        maps = {}
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in wanted:
                maps[index] = to_maps(x.flatten(1, -2), grid)
        x = x.flatten(1, -2)
        normed = self.norm(x)
        summary = normed.mean(dim=1, keepdim=True) if self.class_stage is None else self.norm(self.class_stage(x))
        return Features(summary, to_maps(normed, grid), tuple(maps[level] for level in wanted))

    def summarize(self, images: Tensor) -> Tensor:
        """The summary token of `features`; the last layer of a folded model computes the average of patches only."""
        config = self.config
        is_plain = (config.norm, config.pool, config.communication) == ("affine", "average", "linear")
        if not self.is_folded or not is_plain or config.post_norm:
            return super().summarize(images)
        x = self.stem_patches(images).flatten(2).transpose(1, 2)
        if self.positions is not None:
            x = x + self.positions.for_grid(self.grid)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x)
        average: Tensor = last.feed_forward.average(last.communication(x))
        return self.norm(average)
