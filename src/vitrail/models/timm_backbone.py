"""Any timm backbone behind our contract, plain or with our attention pooling (thesis 5.3.4)."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import timm
import timm.data
import timm.layers
import timm.models
import torch
from torch import Tensor, nn

from vitrail.layers.grid import Grid
from vitrail.layers.norm import EPSILON
from vitrail.layers.pooling import make_pooling_stage
from vitrail.models.contract import (
    HEAD,
    Features,
    Model,
    PoolingPass,
    initialize,
    level_indices,
    to_maps,
)
from vitrail.models.following import following
from vitrail.models.parameters import names_of
from vitrail.models.timm_config import TimmConfig
from vitrail.models.timm_making import find_grid, is_norm, make_backbone, make_head, preprocessing_of

# Parts of a model, and where timm's transformers and residual networks have their parameters.
_PARTS = {
    "attention": r"(^|\.)attn\d*\.",
    "ffn": r"(^|\.)mlp\d*\.",
    "positions": r"(^|\.)pos_embed",
    "stem": r"^backbone\.(patch_embed|stem|conv1|bn1)\b",
}
_BELOW_BLOCKS = ("stem", "patch_embed", "pos_embed", "cls_token", "dist_token", "positions", "tokens")


class TimmBackbone(Model):
    """A timm model; with attention pooling or distillation its own classifier is dropped and ours reads what is pooled.

    `features` gives the patches after the final normalisation with attention pooling, and as timm's
    forward_features leaves them with timm's own.
    """

    config: TimmConfig
    family = "timm"
    foreign = "backbone"

    def __init__(self, config: TimmConfig) -> None:
        if config.image_size is None:
            config = dataclasses.replace(config, image_size=config.timm_size)
        super().__init__(config)
        self.backbone = make_backbone(config)
        if self.takes_one_size and config.size != config.timm_size:
            self.try_size()
        dim = self.backbone.num_features
        if dim % config.num_heads:
            heads = [str(count) for count in range(1, 17) if dim % count == 0]
            raise ValueError(
                f"num_heads {config.num_heads} does not divide the {dim} channels of timm/{config.timm_name}: "
                f"try {', '.join(heads)}"
            )
        has_pooling = config.pool == "attention"
        self.class_stage = make_pooling_stage(dim, num_heads=config.num_heads) if has_pooling else None
        self.norm = nn.LayerNorm(dim, eps=EPSILON) if has_pooling else None
        self.head = make_head(config, dim if has_pooling else getattr(self.backbone, "head_hidden_size", dim))
        self.preprocessing = preprocessing_of(config)

    @classmethod
    def made(cls, config: Any) -> "TimmBackbone":
        model = cls(config)
        model.init_pooling()  # the rest of init_weights is what timm just did
        return model

    @property
    def takes_one_size(self) -> bool:
        is_dynamic = getattr(self.backbone, "dynamic_img_size", False)
        return bool(self.config.timm_facts.get("fixed_input_size")) and not is_dynamic

    def try_size(self) -> None:
        """Refuse a size the backbone was built for in vain."""
        height, width = self.config.size
        parameter = next(self.backbone.parameters())
        self.backbone.eval()
        try:
            with torch.no_grad():
                self.backbone.forward_features(parameter.new_zeros(1, self.config.in_channels, height, width))
        except (AssertionError, RuntimeError):
            trained = "x".join(map(str, self.config.timm_size))
            raise ValueError(
                f"timm/{self.config.timm_name} can't take images of {height}x{width}: leave image_size at {trained}"
            ) from None
        self.backbone.train()

    def init_weights(self) -> None:
        """Set every parameter and buffer to the value training starts from; the backbone's are those timm draws."""
        if self.is_folded:
            raise ValueError("a folded model can't be initialised anew: fold the original again")
        with torch.device(next(self.backbone.parameters()).device), torch.no_grad():
            fresh = make_backbone(self.config)
            for own, new in (
                (dict(self.backbone.named_parameters()), dict(fresh.named_parameters())),
                (dict(self.backbone.named_buffers()), dict(fresh.named_buffers())),
            ):
                for name, value in own.items():
                    value.copy_(new[name])
        self.init_pooling()

    def init_pooling(self) -> None:
        """The part of `init_weights` that is ours, for a backbone timm has just built."""
        for part in (self.class_stage, self.norm, self.head):
            if part is not None:
                initialize(part)

    def check_images(self, images: Tensor) -> None:
        super().check_images(images)
        height, width = images.shape[-2:]
        if self.takes_one_size and (height, width) != self.config.size:
            raise ValueError(
                f"made for images of {self.config.size[0]}x{self.config.size[1]}, not {height}x{width}: "
                "create it with that image_size"
            )

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.config.has_own_classifier:
            self.check_images(images)
            return self.backbone(images)
        return self.head(self.summarize(images))

    def summarize(self, images: Tensor) -> Tensor:
        self.check_images(images)
        output = self.backbone.forward_features(images)
        return self.pool(output, None if self.class_stage is None else self.as_maps(output, images))

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        if not self.config.has_own_classifier or not self.config.num_classes:
            return super().outputs(images)
        self.check_images(images)
        output = self.backbone.forward_features(images)
        return {"logits": self.backbone.forward_head(output), "embedding": self.pool(output, None).flatten(1)}

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        wanted = self.check_levels(levels)
        self.check_images(images)
        if wanted:
            indices = sorted(set(wanted))
            output, found = self.backbone.forward_intermediates(images, indices=indices, output_fmt="NCHW")
            chosen = tuple(found[indices.index(level)] for level in wanted)
        else:
            output, chosen = self.backbone.forward_features(images), ()
        maps = self.as_maps(output, images)
        summary = self.pool(output, maps)
        if self.norm is not None:
            maps = self.norm(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return Features(summary, maps, chosen)

    @property
    def num_levels(self) -> int:
        return len(self.backbone.feature_info) if hasattr(self.backbone, "forward_intermediates") else 0

    @property
    def stem_dim(self) -> int | None:
        """Width of timm's patches, where its model embeds them one by one and keeps them apart to its end."""
        embeds = getattr(self.backbone, "patch_embed", None) is not None and hasattr(self.backbone, "blocks")
        width = getattr(self.backbone, "embed_dim", None)
        return width if embeds and width == self.backbone.num_features else None

    def masked_patches(self, images: Tensor, *, masks: Tensor, token: Tensor) -> Tensor:
        if self.stem_dim is None:
            return super().masked_patches(images, masks=masks, token=token)

        def replace(layer: nn.Module, inputs: tuple[Tensor, ...], patches: Tensor) -> Tensor:
            is_masked = masks.flatten(1) if patches.ndim == 3 else masks
            return torch.where(is_masked.unsqueeze(-1), token.to(patches.dtype), patches)

        handle = self.backbone.patch_embed.register_forward_hook(replace)
        try:
            return self.features(images).patches
        finally:
            handle.remove()

    def forward_whole(self, images: Tensor) -> Tensor:
        answer = self(images)
        return answer[0] if isinstance(answer, tuple) else answer

    def answer_with_grid(self, images: Tensor) -> tuple[Tensor, Grid]:
        """The answer of `forward` step by step: only so the grid, which depends on the backbone, is known."""
        self.check_images(images)
        output = self.backbone.forward_features(images)
        maps = self.as_maps(output, images)
        is_own = self.config.has_own_classifier
        answer = self.backbone.forward_head(output) if is_own else self.head(self.pool(output, maps))
        return answer, (maps.shape[2], maps.shape[3])

    def pooling_pass(self, images: Tensor) -> PoolingPass:
        """The answer, followed from timm's last map on, or from the input of the last block of a class token."""

        def to_map(product: Tensor) -> Tensor:
            return self.as_maps(product, images).sum(dim=1)

        if getattr(self.backbone, "global_pool", None) == "token" and hasattr(self.backbone, "blocks"):
            last = self.backbone.blocks[-1]
            with following([last], is_input=True) as points:
                logits = self(images)
            return PoolingPass(logits, points[last], to_map)
        self.check_images(images)
        patches = self.backbone.forward_features(images).detach().requires_grad_()
        with torch.enable_grad():
            is_own = self.config.has_own_classifier
            logits = self.backbone.forward_head(patches) if is_own else self.head(self.pool(patches, None))
        return PoolingPass(logits, patches, to_map)

    def pool(self, output: Tensor, maps: Tensor | None) -> Tensor:
        """The summary token: timm's own of its `output`, or ours of the maps."""
        if self.class_stage is None or self.norm is None or maps is None:
            return self.backbone.forward_head(output, pre_logits=True).flatten(1).unsqueeze(1)
        return self.norm(self.class_stage(maps.flatten(2).transpose(1, 2)))

    def check_levels(self, levels: Sequence[int]) -> list[int]:
        """Indices of timm's feature stages (blocks, in a transformer), with negative ones counted from the end."""
        if not levels:
            return []
        if not hasattr(self.backbone, "forward_intermediates"):
            raise ValueError(
                f"levels of timm/{self.config.timm_name} are not offered: use timm's own features_only models"
            )
        return level_indices(levels, count=len(self.backbone.feature_info), of="stages")

    def as_maps(self, output: object, images: Tensor) -> Tensor:
        """timm's features, be they maps, maps with channels last or tokens, as [batch, dim, height, width]."""
        dim = self.backbone.num_features
        if isinstance(output, Tensor) and output.ndim == 4:
            layout = getattr(self.backbone, "output_fmt", "NCHW" if output.shape[1] == dim else "NHWC")
            maps = output.permute(0, 3, 1, 2) if getattr(layout, "value", layout) == "NHWC" else output
            if maps.shape[1] == dim:
                return maps
        if isinstance(output, Tensor) and output.ndim == 3 and output.shape[2] == dim:
            class_token = getattr(self.backbone, "cls_token", None)
            if not isinstance(class_token, Tensor) or output.shape[1] > class_token.shape[1]:
                prefix = getattr(self.backbone, "num_prefix_tokens", 0)
                for dropped in (prefix, prefix + 1, prefix + 2):  # some do not tell of their class tokens
                    grid = find_grid(output.shape[1] - dropped, size=(images.shape[2], images.shape[3]))
                    if grid is not None:
                        return to_maps(output[:, dropped:], grid)
        raise ValueError(
            f"timm/{self.config.timm_name} gives no single map of patches: it can only classify, with pool='average'"
        )

    def state_for(self, model: Model) -> dict[str, Tensor]:
        """The state dict in the shapes of another image size, resized as timm does it where shapes differ."""
        assert isinstance(model, TimmBackbone)
        state: dict[str, Tensor] = self.state_dict()
        wanted = model.state_dict()
        if all(value.shape == wanted[name].shape for name, value in state.items()):
            return state
        resized = make_backbone(model.config, weights=self.backbone.state_dict()).state_dict()
        return state | {f"backbone.{name}": value for name, value in resized.items()}

    def head_prefixes(self) -> tuple[str, ...]:
        classifier = self.backbone.default_cfg.get("classifier") or ()
        names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
        ours = (HEAD,) if self.class_stage is None else ("class_stage.", "norm.", HEAD)
        return (*(f"backbone.{name}." for name in names), *ours)

    def classifier_layers(self) -> list[nn.Linear]:
        if not self.config.has_own_classifier:
            return super().classifier_layers()
        classifier = self.backbone.get_classifier()
        if not isinstance(classifier, nn.Linear) or classifier.bias is None:
            raise ValueError(f"{self.name} does not end in one linear layer: a probe of it can't be saved as a model")
        return [classifier]

    def timm_state(self) -> dict[str, Tensor]:
        if not self.config.has_own_classifier:
            kind = "second head" if self.config.distilled else "MLP as classifier"
            extra = "attention pooling" if self.class_stage is not None else kind
            raise ValueError(f"timm has no such {extra}; model.backbone.state_dict() is the part it has")
        return {name: value.detach().clone() for name, value in self.backbone.state_dict().items()}

    def parameter_layers(self) -> dict[str, int]:
        """The layer of every parameter: as timm divides its model, then our pooling, then our norm and head."""
        if not hasattr(self.backbone, "group_matcher"):
            raise ValueError(f"timm/{self.config.timm_name} does not tell its layers: layer_decay and Muon need them")
        matcher = self.backbone.group_matcher(coarse=False)
        found = timm.models.group_parameters(self.backbone, matcher, reverse=True)
        layers = {f"backbone.{name}": layer for name, layer in found.items()}
        pooling = max(layers.values()) + 1
        last = pooling + (self.class_stage is not None)
        return {
            name: layers[name] if name in layers else pooling if name.startswith("class_stage.") else last
            for name, _ in self.named_parameters()
        }

    def undecayed(self) -> set[str]:
        """Names of parameters without weight decay; timm names its tokens and positions itself."""
        own = self.backbone.no_weight_decay() if hasattr(self.backbone, "no_weight_decay") else ()
        return super().undecayed() | {f"backbone.{name}" for name in own}

    def parts(self) -> dict[str, set[str]]:
        names = {name for name, _ in self.backbone.named_parameters(prefix="backbone")}
        found = {part: ours - names for part, ours in super().parts().items()}
        for part, pattern in _PARTS.items():
            found[part] |= {name for name in names if re.search(pattern, name)}
        norms = (module for module in self.backbone.modules() if is_norm(module))
        found["norm"] |= names_of(self, (parameter for norm in norms for parameter in norm.parameters()))
        if not found["head"]:
            found["head"] = names_of(self, self.backbone.get_classifier().parameters())
        return found

    def from_block(self, first: int) -> set[str]:
        if not hasattr(self.backbone, "blocks"):
            raise ValueError(f"timm/{self.config.timm_name} has no row of blocks")
        if first >= len(self.backbone.blocks):
            raise ValueError(f"there are the blocks 0 to {len(self.backbone.blocks) - 1}")
        below = (
            *(f"backbone.blocks.{index}." for index in range(first)),
            *(f"backbone.{name}." for name in _BELOW_BLOCKS),
        )
        return {name for name, _ in self.named_parameters() if not f"{name}.".startswith(below)}

    def recompute_blocks(self) -> None:
        if not hasattr(self.backbone, "set_grad_checkpointing"):
            raise ValueError(f"{self.name} can't recompute its blocks: leave run.checkpointing out")
        self.backbone.set_grad_checkpointing()
