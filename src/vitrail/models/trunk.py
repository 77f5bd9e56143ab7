"""The transformer trunk that ViT and CaiT share, with every residual structure the papers compare (thesis 3.5)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.attention import SelfAttention, TalkingHeadsAttention
from vitrail.layers.classifier import MlpClassifier
from vitrail.layers.grid import Grid
from vitrail.layers.mlp import FeedForward
from vitrail.layers.norm import EPSILON
from vitrail.layers.position import LearnedPositions
from vitrail.layers.residual import (
    Block,
    Branch,
    ConstantScaling,
    DropoutShortcut,
    Gating,
    LayerScale,
    LinearShortcut,
    PostNorm,
    Residual,
    ScalarBias,
    ScalarScale,
)
from vitrail.layers.sample_draws import Dropout
from vitrail.models.backbone import Backbone, replace_masked
from vitrail.models.config import ImageConfig
from vitrail.models.contract import to_maps

SCALAR_STYLES = {"rezero": 0.0, "fixup": 1.0, "t_fixup": 1.0}  # initial weight of a branch
STYLES_WITHOUT_NORM = (*SCALAR_STYLES, "scalar")  # those proposed without layer norms, or with one weight a branch
RESIDUAL_STYLES = (
    "pre_norm",
    "rezero",
    "scalar",
    "fixup",
    "t_fixup",
    "constant_scaling",
    "exclusive_gating",
    "shortcut_gating",
    "linear_shortcut",
    "dropout_shortcut",
    "post_norm",
)


@dataclass(frozen=True, kw_only=True)
class TrunkConfig(ImageConfig):
    """Settings of a trunk of attention and feed-forward layers."""

    num_heads: int = 6
    mlp_ratio: float = 4.0  # hidden width of the feed-forward network over dim
    num_branches: int = 1  # attention (and feed-forward) layers side by side in a block, Three things eq. 2
    talking_heads: bool = False
    layer_scale: float | None = None  # initial value e of LayerScale or of the scalar weights; None: none
    layer_scale_init: str = "constant"  # or "uniform": drawn from [0, 2e]
    layer_scale_frozen: bool = False  # keep the values given: the re-training control
    residual: str = "pre_norm"  # one of RESIDUAL_STYLES
    residual_norm: bool = True  # LayerNorm before a branch; ReZero, Fixup and T-Fixup were proposed without (eq. 3)
    dropout: float = 0.0  # on patches and tokens at the input, and behind linear layers but queries, keys and values

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("num_heads", "num_branches")
        self.check_heads(self.num_heads)
        self.check_choice("residual", RESIDUAL_STYLES)
        self.check_choice("layer_scale_init", ("constant", "uniform"))
        self.check_flags("talking_heads", "layer_scale_frozen", "residual_norm")
        self.check_ratio("mlp_ratio")
        self.check_number("layer_scale", optional=True)
        self.check_number("dropout", below=1.0)
        if not self.residual_norm and self.residual not in STYLES_WITHOUT_NORM:
            styles = ", ".join(STYLES_WITHOUT_NORM)
            raise ValueError(f"residual_norm=False is for residual {styles}: residual={self.residual!r} needs its norm")
        if self.residual == "scalar" and self.layer_scale is None:
            raise ValueError("residual='scalar' needs its initial value: pass layer_scale, e.g. 1e-5")
        if self.residual not in ("pre_norm", "scalar") and self.layer_scale is not None:
            raise ValueError(f"residual={self.residual!r} takes the place of LayerScale: pass layer_scale=None with it")
        if self.layer_scale is None and (self.layer_scale_frozen or self.layer_scale_init != "constant"):
            raise ValueError("layer_scale_init and layer_scale_frozen need a layer_scale")
        if self.residual == "scalar" and (self.layer_scale_frozen or self.layer_scale_init != "constant"):
            raise ValueError("residual='scalar' has one weight a branch: leave layer_scale_init and _frozen out")


def scale_of(config: TrunkConfig) -> nn.Module | None:
    """What multiplies a branch of the trunk."""
    if config.residual in SCALAR_STYLES:
        return ScalarScale(value=SCALAR_STYLES[config.residual])
    if config.residual == "scalar" and config.layer_scale is not None:
        return ScalarScale(value=config.layer_scale)
    return layer_scale_of(config)


def layer_scale_of(config: TrunkConfig) -> LayerScale | None:
    """The LayerScale of a branch, where the config asks for one."""
    if config.layer_scale is None:
        return None
    return LayerScale(
        config.dim, value=config.layer_scale, init=config.layer_scale_init, is_frozen=config.layer_scale_frozen
    )


def join_of(config: TrunkConfig) -> nn.Module | None:
    """What joins the branches to the shortcut, where it is not a plain sum."""
    match config.residual:
        case "constant_scaling":
            return ConstantScaling()
        case "exclusive_gating":
            return Gating(config.dim, exclusive=True)
        case "shortcut_gating":
            return Gating(config.dim, exclusive=False)
        case "linear_shortcut":
            return LinearShortcut(config.dim)
        case "dropout_shortcut":
            return DropoutShortcut()
        case "post_norm":
            return PostNorm(nn.LayerNorm(config.dim, eps=EPSILON))
    return None


def norm_of(config: TrunkConfig) -> nn.Module:
    """What comes before the mixing of a branch: LayerNorm, if any, and Fixup's scalar bias."""
    is_fixup = config.residual == "fixup"
    if config.residual == "post_norm" or not config.residual_norm:
        return ScalarBias() if is_fixup else nn.Identity()
    norm = nn.LayerNorm(config.dim, eps=EPSILON)
    return nn.Sequential(norm, ScalarBias()) if is_fixup else norm


def attention_of(config: TrunkConfig) -> nn.Module:
    kind = TalkingHeadsAttention if config.talking_heads else SelfAttention
    return kind(config.dim, num_heads=config.num_heads, scalar_bias=config.residual == "fixup")


def feed_forward_of(config: TrunkConfig) -> nn.Module:
    hidden_dim = int(config.dim * config.mlp_ratio)
    is_fixup = config.residual == "fixup"
    return FeedForward(config.dim, hidden_dim=hidden_dim, scalar_bias=is_fixup, dropout=config.dropout)


def make_block(config: TrunkConfig, *, drop_path: float) -> Block:
    """Attention branches, then feed-forward branches."""

    def residual(mixes: list[nn.Module]) -> Residual:
        rates = {"drop_path": drop_path, "dropout": config.dropout}
        branches = [Branch(norm=norm_of(config), mix=mix, scale=scale_of(config), **rates) for mix in mixes]
        return Residual(branches, join=join_of(config))

    return Block(
        communication=residual([attention_of(config) for _ in range(config.num_branches)]),
        feed_forward=residual([feed_forward_of(config) for _ in range(config.num_branches)]),
    )


def make_trunk(config: TrunkConfig) -> nn.ModuleList:
    """All blocks, each with its rate of stochastic depth."""
    return nn.ModuleList(make_block(config, drop_path=rate) for rate in config.drop_path_rates)


class TrunkModel(Backbone):
    """What ViT and CaiT have in common: positions added to the patches, and the initialisation of the trunk."""

    config: TrunkConfig
    positions: LearnedPositions
    drop_patches: Dropout  # at the input of the trunk

    @property
    def grid(self) -> Grid:
        return self.positions.grid

    @property
    def takes_any_patches(self) -> bool:
        return True

    def entry(self) -> list[nn.Parameter]:
        return [*super().entry(), *self.positions.parameters()]

    @torch.no_grad()
    def init_weights(self) -> None:
        super().init_weights()
        if self.config.residual == "fixup":
            apply_fixup(self.blocks, self.head, dim=self.config.dim)
        elif self.config.residual == "t_fixup":
            apply_t_fixup(self.blocks, dim=self.config.dim)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Patches with their positions, [batch, length, dim], and their grid."""
        return self.place(self.stem_patches(images))

    def place(self, patches: Tensor) -> tuple[Tensor, Grid]:
        """Patches of the stem [batch, dim, rows, columns] with their positions, and their grid."""
        grid = patches.shape[2], patches.shape[3]
        return self.drop_patches(patches.flatten(2).transpose(1, 2) + self.positions.for_grid(grid)), grid

    def masked_patches(self, images: Tensor, *, masks: Tensor, token: Tensor) -> Tensor:
        patches, grid = self.place(replace_masked(self.stem_patches(images), masks, token))
        return to_maps(self.patches_alone(patches), grid)

    def visible_patches(self, images: Tensor, *, kept: Tensor) -> Tensor:
        patches, _ = self.embed(images)
        return self.patches_alone(patches.gather(1, kept.unsqueeze(2).expand(-1, -1, patches.shape[2])))

    def patches_alone(self, patches: Tensor) -> Tensor:
        """The blocks and the norm on patches with their positions, whichever there are: [batch, length, dim]."""
        raise NotImplementedError


def apply_fixup(blocks: nn.ModuleList, head: nn.Module, *, dim: int) -> None:
    """Fixup (Zhang et al. 2019): its three rules, on He's initialisation.

    The classifier and the last layer of each branch start at zero; the other layers are scaled by L^(-1/(2m-2)).
    L is the number of residual branches in sequence and m = 2 the number of layers of a branch: the two of the
    feed-forward network; values and output of the attention, whose queries and keys act through the softmax only.
    """
    num_branches = 2 * len(blocks)
    shrink = num_branches**-0.5
    for layer in blocks.modules():
        if isinstance(layer, SelfAttention):
            values = values_of(layer.qkv.weight, dim)
            nn.init.kaiming_normal_(values)
            values.mul_(shrink)
            layer.proj.weight.zero_()
        elif isinstance(layer, FeedForward):
            nn.init.kaiming_normal_(layer.expand.weight)
            layer.expand.weight.mul_(shrink)
            layer.contract.weight.zero_()
    last = head.linear if isinstance(head, MlpClassifier) else head
    for layer in last.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)


def apply_t_fixup(blocks: nn.ModuleList, *, dim: int) -> None:
    """T-Fixup (Huang et al. 2020), encoder side: Xavier everywhere, then values, outputs and MLP by 0.67 N^(-1/4).

    Its scaling of the input embeddings is left out: patches are projected, not looked up in a table.
    """
    shrink = 0.67 * len(blocks) ** -0.25
    for layer in blocks.modules():
        if isinstance(layer, SelfAttention):
            for part in layer.qkv.weight.split(dim):
                nn.init.xavier_uniform_(part)
            nn.init.xavier_uniform_(layer.proj.weight, gain=shrink)
            values_of(layer.qkv.weight, dim).mul_(shrink)
        elif isinstance(layer, FeedForward):
            nn.init.xavier_uniform_(layer.expand.weight, gain=shrink)
            nn.init.xavier_uniform_(layer.contract.weight, gain=shrink)


def values_of(qkv_weight: Tensor, dim: int) -> Tensor:
    """The rows that make the values, a view."""
    return qkv_weight[2 * dim :]
