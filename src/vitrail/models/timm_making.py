"""timm's models as they come, and made what ours need: draws, stems, classifiers, preprocessing."""

from typing import Any

import timm
import timm.data
import timm.layers
import timm.models
from torch import Tensor, nn

from vitrail.layers.classifier import make_classifier
from vitrail.layers.sample_draws import Dropout, DropPath
from vitrail.models.contract import Preprocessing, for_channels
from vitrail.models.parameters import NORMS
from vitrail.models.timm_config import OUR_NAMES, TimmConfig

# The files whose classes are normalisations, some of them with an activation; timm has no class that all derive from.
_NORM_FILES = tuple(f"timm.layers.{name}" for name in ("norm", "norm_act", "evo_norm", "filter_response_norm"))


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
        backbone = timm.create_model(config.timm_name, pretrained=is_pretrained, **settings)
    except Exception as error:  # timm's models check little: a wrong value ends in whatever it breaks first
        for setting in ("img_size", "drop_path_rate"):
            if isinstance(error, TypeError) and f"'{setting}'" in str(error):
                raise ValueError(f"timm/{config.timm_name} has no setting {OUR_NAMES[setting]}: leave it out") from None
        if not config.options and not isinstance(error, AssertionError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"timm/{config.timm_name} can't be built with these settings: {reason}") from error
    use_our_draws(backbone)
    return with_small_stem(backbone, config) if config.small_images else backbone


def use_our_draws(backbone: nn.Module) -> None:
    """Put our stochastic depth and dropout, whose draws belong to a sample, into the places of timm's and torch's."""
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, timm.layers.DropPath) and child.scale_by_keep:
                setattr(parent, name, DropPath(child.drop_prob))
            elif type(child) is nn.Dropout and child.p > 0.0 and name != "attn_drop":  # whose rate fused kernels read
                setattr(parent, name, Dropout(child.p))


def with_small_stem(backbone: Any, config: TimmConfig) -> Any:
    """A ResNet whose first convolution and pooling, which divide the sides by four, keep them instead."""
    first = getattr(backbone, "conv1", None)
    if not isinstance(first, nn.Conv2d) or not isinstance(getattr(backbone, "maxpool", None), nn.MaxPool2d):
        raise ValueError(f"timm/{config.timm_name} has no stem of a ResNet: small_images can't change it")
    backbone.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(backbone.conv1.weight, mode="fan_out", nonlinearity="relu")  # as timm's
    backbone.maxpool = nn.Identity()
    return backbone


def make_head(config: TimmConfig, dim: int) -> nn.Module:
    """Our classifier, where timm's own does not answer."""
    if config.has_own_classifier:
        return nn.Identity()
    return make_classifier(dim, num_classes=config.num_classes, kind=config.classifier, distilled=config.distilled)


def preprocessing_of(config: TimmConfig) -> Preprocessing:
    """timm's own preprocessing, for the channels the images have."""
    data = timm.data.resolve_data_config(pretrained_cfg=config.timm_facts)
    mean, std = (for_channels(data[statistic], config.in_channels) for statistic in ("mean", "std"))
    return Preprocessing(data["crop_pct"], data["interpolation"], mean, std)


def is_norm(module: nn.Module) -> bool:
    """Whether a module of a timm model is a normalisation, whatever it is called there (`norm1`, `bn1`)."""
    return isinstance(module, (*NORMS, timm.models.mlp_mixer.Affine)) or type(module).__module__ in _NORM_FILES


def find_grid(count: int, *, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of `count` patches of an image, or None where they form no grid of its aspect."""
    height, width = size
    rows = max(round((max(count, 0) * height / width) ** 0.5), 1)
    columns = count // rows
    if columns < 1 or rows * columns != count or abs(rows * width / height - columns) >= 1:
        return None
    return rows, columns
