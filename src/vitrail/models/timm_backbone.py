"""Any timm backbone behind our contract, plain or with our attention pooling (thesis 5.3.4)."""

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import timm
import timm.data
import torch
from torch import Tensor, nn

from vitrail.layers.classifier import Classifier, DistilledClassifier
from vitrail.layers.norm import EPSILON
from vitrail.layers.pooling import make_pooling_stage
from vitrail.models.contract import (
    CheckedSettings,
    Features,
    Model,
    Preprocessing,
    for_channels,
    height_and_width,
    initialize,
    level_indices,
    to_maps,
    whole_sides,
)

# Arguments of timm's models that are settings of ours, or not for the one who builds a model to say.
_OURS = {
    "in_chans": "in_channels",
    "num_classes": "num_classes",
    "img_size": "image_size",
    "drop_path_rate": "drop_path",
    "global_pool": "pool",
}
_WITHHELD = (
    "pretrained",
    "checkpoint_path",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "features_only",
    "out_indices",
)


def check_options(options: object) -> None:
    """Refuse what timm.create_model would take for something else than the shape of a model."""
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"options are names and values for timm's model, as {{output_stride: 8}}, not {options!r}")
    for name in options:
        if name in _OURS:
            raise ValueError(f"options: {name} is the setting {_OURS[name]} of ours")
        if name in _WITHHELD:
            raise ValueError(f"options: {name} does not say how a backbone is built: leave it out")


@dataclass(frozen=True, kw_only=True)
class TimmSettings(CheckedSettings):
    """What a user may set of a timm backbone."""

    image_size: int | tuple[int, int] | None = None  # None: the size timm trained it at
    in_channels: int = 3
    num_classes: int = 1000
    pool: str = "average"  # timm's own pooling and classifier, or "attention": ours
    num_heads: int = 1  # heads of the pooling attention
    distilled: bool = False  # two heads of ours on the pooled features, the second for a teacher's labels
    drop_path: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)  # what else timm's model takes: channels, output_stride ...

    def __post_init__(self) -> None:
        self.check_counts("in_channels", "num_heads")
        self.check_counts("num_classes", least=0)
        self.check_flags("distilled")
        self.check_number("drop_path", below=1.0)
        check_options(self.options)
        if self.image_size is not None:
            object.__setattr__(self, "image_size", whole_sides(self.image_size))
            height_and_width(self.image_size)
        if self.pool not in ("average", "attention"):
            raise ValueError(f"pool must be average or attention, not {self.pool!r}")
        if self.pool == "average" and self.num_heads != 1:
            raise ValueError("num_heads is a setting of pool='attention'")


@dataclass(frozen=True, kw_only=True)
class TimmConfig(TimmSettings):
    """Settings of a timm backbone and its name."""

    timm_name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not timm.is_model(self.timm_name):
            near = difflib.get_close_matches(self.timm_name, timm.list_models(), n=3)
            hint = f"did you mean {', '.join(f'timm/{name}' for name in near)}?" if near else "see timm.list_models()"
            raise ValueError(f"timm has no model {self.timm_name!r}: {hint}")

    @property
    def has_own_classifier(self) -> bool:
        """Whether timm's own classifier answers."""
        return self.pool == "average" and not self.distilled

    @property
    def timm_facts(self) -> dict[str, Any]:
        """What timm says of the weights it trained: input_size, fixed_input_size, mean, std and so on."""
        facts = timm.get_pretrained_cfg(self.timm_name)
        return {"input_size": (3, 224, 224)} if facts is None else facts.to_dict()

    @property
    def timm_size(self) -> tuple[int, int]:
        """Height and width of the images timm trained it on."""
        height, width = self.timm_facts["input_size"][-2:]
        return height, width

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return self.timm_size if self.image_size is None else height_and_width(self.image_size)


class TimmBackbone(Model):
    """A timm model; with attention pooling or distillation its own classifier is dropped and ours reads what is pooled.

    `features` gives the patches after the final normalisation with attention pooling, and as timm's
    forward_features leaves them with timm's own.
    """

    config: TimmConfig

    def __init__(self, config: TimmConfig) -> None:
        if config.image_size is None:
            config = dataclasses.replace(config, image_size=config.timm_size)
        super().__init__(config)
        self.backbone = make_backbone(config)
        self.takes_one_size = bool(config.timm_facts.get("fixed_input_size")) and not getattr(
            self.backbone, "dynamic_img_size", False
        )
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

    def forward(self, images: Tensor) -> Any:
        if self.config.has_own_classifier:
            self.check_images(images)
            return self.backbone(images)
        return self.head(self.summarize(images))

    def summarize(self, images: Tensor) -> Tensor:
        self.check_images(images)
        output = self.backbone.forward_features(images)
        return self.pool(output, None if self.class_stage is None else self.as_maps(output, images))

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


def make_backbone(config: TimmConfig, *, is_pretrained: bool = False, weights: dict[str, Tensor] | None = None) -> Any:
    """timm's model, without its classifier where ours follows; with the weights timm offers where `is_pretrained`.

    `weights` take their place: those of a model of another image size are resized as timm does it.
    """
    settings: dict[str, object] = {
        "in_chans": config.in_channels,
        "num_classes": config.num_classes if config.has_own_classifier else 0,
        **config.options,
    }
    if config.drop_path:
        settings["drop_path_rate"] = config.drop_path
    if config.timm_facts.get("fixed_input_size") and config.size != config.timm_size:
        settings["img_size"] = config.size
    if weights is not None:
        settings["pretrained_cfg_overlay"] = {"state_dict": weights, "num_classes": config.num_classes}
    is_pretrained = is_pretrained or weights is not None
    try:
        return timm.create_model(config.timm_name, pretrained=is_pretrained, **settings)
    except Exception as error:  # timm's models check little: a wrong value ends in whatever it breaks first
        for setting in ("img_size", "drop_path_rate"):
            if isinstance(error, TypeError) and f"'{setting}'" in str(error):
                raise ValueError(f"timm/{config.timm_name} has no setting {_OURS[setting]}: leave it out") from None
        if not config.options and not isinstance(error, AssertionError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"timm/{config.timm_name} can't be built with these settings: {reason}") from error


def make_head(config: TimmConfig, dim: int) -> nn.Module:
    """Our classifier, where timm's own does not answer."""
    if config.has_own_classifier:
        return nn.Identity()
    return (DistilledClassifier if config.distilled else Classifier)(dim, num_classes=config.num_classes)


def preprocessing_of(config: TimmConfig) -> Preprocessing:
    """timm's own, for the channels the images have."""
    data = timm.data.resolve_data_config(pretrained_cfg=config.timm_facts)
    mean, std = (for_channels(data[statistic], config.in_channels) for statistic in ("mean", "std"))
    return Preprocessing(data["crop_pct"], data["interpolation"], mean, std)


def find_grid(count: int, *, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of `count` patches of an image, or None where they form no grid of its aspect."""
    height, width = size
    rows = max(round((max(count, 0) * height / width) ** 0.5), 1)
    columns = count // rows
    if columns < 1 or rows * columns != count or abs(rows * width / height - columns) >= 1:
        return None
    return rows, columns
