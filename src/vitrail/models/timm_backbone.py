"""Any timm backbone behind our contract, plain or with our attention pooling (thesis 5.3.4)."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import timm
import timm.data
from torch import Tensor, nn

from vitrail.layers.classifier import Classifier
from vitrail.models.contract import Features, Model, Preprocessing, initialize
from vitrail.models.patchconvnet import make_pooling_stage


@dataclass(frozen=True, kw_only=True)
class TimmConfig:
    """Settings of a timm backbone."""

    timm_name: str
    image_size: int | tuple[int, int] | None = None  # None: the size timm trained it at
    in_channels: int = 3
    num_classes: int = 1000
    pool: str = "average"  # timm's own pooling and classifier, or "attention": ours
    num_heads: int = 1  # heads of the pooling attention
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        if not timm.is_model(self.timm_name):
            near = difflib.get_close_matches(self.timm_name, timm.list_models(), n=3)
            hint = f"did you mean {', '.join(f'timm/{name}' for name in near)}?" if near else "see timm.list_models()"
            raise ValueError(f"timm has no model {self.timm_name!r}: {hint}")
        if self.pool not in ("average", "attention"):
            raise ValueError(f"pool must be average or attention, not {self.pool!r}")
        if self.pool == "average" and self.num_heads != 1:
            raise ValueError("num_heads is a setting of pool='attention'")


class TimmBackbone(Model):
    """A timm model; with attention pooling its own classifier is dropped and ours reads the pooled token."""

    config: TimmConfig

    def __init__(self, config: TimmConfig) -> None:
        super().__init__(config)
        own_head = config.pool == "average"
        settings: dict[str, object] = {
            "in_chans": config.in_channels,
            "num_classes": config.num_classes if own_head else 0,
        }
        if config.drop_path:
            settings["drop_path_rate"] = config.drop_path
        backbone = timm.create_model(config.timm_name, pretrained=False, **settings)
        data = timm.data.resolve_data_config({}, model=backbone)
        if config.image_size is None:
            object.__setattr__(config, "image_size", tuple(data["input_size"][-2:]))
        elif hasattr(backbone, "set_input_size"):
            backbone.set_input_size(img_size=config.image_size)
        self.backbone = backbone
        dim = backbone.num_features
        self.class_stage = None if own_head else make_pooling_stage(dim, num_heads=config.num_heads)
        self.norm = None if own_head else nn.LayerNorm(dim)
        self.head = nn.Identity() if own_head else Classifier(dim, num_classes=config.num_classes)
        self.preprocessing = Preprocessing(data["crop_pct"], data["interpolation"], data["mean"], data["std"])

    def init_weights(self) -> None:
        """Our own parts start anew; timm initialised its backbone when it built it."""
        if self.class_stage is not None and self.norm is not None:
            for part in (self.class_stage, self.norm, self.head):
                initialize(part)

    def forward(self, images: Tensor) -> Tensor:
        self.check_images(images)
        if self.class_stage is None:
            return self.backbone(images)
        return self.head(self.features(images).summary)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        if levels:
            raise ValueError("levels of a timm backbone are not offered: use timm's own features_only models")
        self.check_images(images)
        output = self.backbone.forward_features(images)
        maps = self.as_maps(output, images)
        if self.class_stage is None or self.norm is None:
            summary = self.backbone.forward_head(output, pre_logits=True)
            summary = summary.flatten(1).unsqueeze(1)
        else:
            summary = self.norm(self.class_stage(maps.flatten(2).transpose(1, 2)))
        return Features(summary, maps)

    def as_maps(self, output: Tensor, images: Tensor) -> Tensor:
        """timm's features, be they maps, maps with channels last or tokens, as [batch, dim, height, width]."""
        dim = self.backbone.num_features
        if output.ndim == 4:
            return output if output.shape[1] == dim else output.permute(0, 3, 1, 2)
        patches = output[:, getattr(self.backbone, "num_prefix_tokens", 0) :]
        height, width = images.shape[-2:]
        rows = round((patches.shape[1] * height / width) ** 0.5)
        if rows * (patches.shape[1] // max(rows, 1)) != patches.shape[1]:
            raise ValueError(f"the tokens of {self.config.timm_name} do not form a grid; use pool='average'")
        return patches.transpose(1, 2).unflatten(2, (rows, -1))
