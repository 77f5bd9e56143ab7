"""PatchConvNet: a columnar convolutional trunk with attention-based pooling (thesis chapter 5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from vitrail.layers.attention import ClassAttention
from vitrail.layers.mixing import ConvolutionMix
from vitrail.layers.norm import EPSILON, make_norm
from vitrail.layers.pooling import make_pooling_stage
from vitrail.layers.residual import Branch, LayerScale, Residual
from vitrail.models.backbone import Backbone, head_of, stem_of
from vitrail.models.config import ImageConfig
from vitrail.models.contract import Features


@dataclass(frozen=True, kw_only=True)
class PatchConvNetConfig(ImageConfig):
    """Settings of a PatchConvNet."""

    stem: str = "conv"
    norm: str = "layer"  # or "batch" (table 5.8)
    layer_scale: float = 1e-6  # initial value of LayerScale
    pool: str = "attention"  # or "average"
    num_heads: int = 1  # heads of the pooling attention
    qkv_bias: bool = False  # biases on its queries, keys and values, which all official models have
    per_class_tokens: bool = False  # one pooling token, and so one attention map, per class
    distilled: bool = False  # a second pooling token with a head of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("norm", ("layer", "batch"))
        self.check_choice("pool", ("attention", "average"))
        self.check_counts("num_heads")
        self.check_heads(self.num_heads)
        self.check_flags("qkv_bias", "per_class_tokens", "distilled")
        if self.pool == "average" and (self.per_class_tokens or self.distilled or self.num_heads != 1):
            raise ValueError("pool='average' has no tokens: leave per_class_tokens, distilled and num_heads out")
        if self.per_class_tokens and self.distilled:
            raise ValueError("per_class_tokens and distilled can't be combined: choose one")
        if self.per_class_tokens and self.num_classes == 0:
            raise ValueError("per_class_tokens needs num_classes of at least 1")
        self.check_number("layer_scale")

    @property
    def num_tokens(self) -> int:
        """Tokens of the pooling stage."""
        return self.num_classes if self.per_class_tokens else 1 + self.distilled


class PatchConvNet(Backbone):
    """Convolutional blocks at one resolution, channels last in memory from the stem on, then learned aggregation."""

    config: PatchConvNetConfig
    family = "patchconvnet"

    def __init__(self, config: PatchConvNetConfig) -> None:
        super().__init__(config)
        self.stem = stem_of(config)
        self.blocks = nn.ModuleList(
            Residual(
                [
                    Branch(
                        norm=make_norm(config.norm, config.dim),
                        mix=ConvolutionMix(config.dim),
                        scale=LayerScale(config.dim, value=config.layer_scale),
                        drop_path=rate,
                    )
                ]
            )
            for rate in config.drop_path_rates
        )
        self.class_stage = (
            make_pooling_stage(
                config.dim,
                num_tokens=config.num_tokens,
                num_heads=config.num_heads,
                class_in_keys=not config.per_class_tokens,
                layer_scale=config.layer_scale,
                bias=config.qkv_bias,
            )
            if config.pool == "attention"
            else None
        )
        self.norm = nn.LayerNorm(config.dim, eps=EPSILON)
        self.head = head_of(config, distilled=config.distilled, per_class=config.per_class_tokens)
        self.register_load_state_dict_pre_hook(drop_biases_that_are_missing)

    def head_prefixes(self) -> tuple[str, ...]:
        return (*super().head_prefixes(), *(("class_stage.tokens",) if self.config.per_class_tokens else ()))

    def features_behind_stem(self, patches: Tensor, *, levels: Sequence[int] = ()) -> Features:
        wanted = self.check_levels(levels)
        x = patches.permute(0, 2, 3, 1).contiguous()
        maps = {}
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in wanted:
                maps[index] = x.permute(0, 3, 1, 2)
        normed = self.norm(x)
        if self.class_stage is None:
            summary = normed.mean(dim=(1, 2)).unsqueeze(1)
        else:
            summary = self.norm(self.class_stage(x.flatten(1, 2)))
        return Features(summary, normed.permute(0, 3, 1, 2), tuple(maps[level] for level in wanted))


def drop_biases_that_are_missing(model: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Make the model one without biases of queries, keys and values where a state dict has none.

    The catalogue had no such biases once: checkpoints of unfinished runs of that time are of such models.
    """
    assert isinstance(model, PatchConvNet)
    for name, layer in model.named_modules():
        if isinstance(layer, ClassAttention) and model.config.qkv_bias:
            projections = {"query": layer.query, "key": layer.key, "value": layer.value}
            has_biases = any(f"{prefix}{name}.{part}.bias" in state for part in projections)
            if not has_biases and f"{prefix}{name}.query.weight" in state:
                for projection in projections.values():
                    projection.register_parameter("bias", None)
                model.config = replace(model.config, qkv_bias=False)
