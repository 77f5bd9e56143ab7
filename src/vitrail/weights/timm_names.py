"""to_timm: a model's weights under timm's names, where timm has such a model."""

import dataclasses
from typing import Any

from torch import Tensor

from vitrail.models.contract import Model
from vitrail.weights.translate import translate_to_timm

# Setting -> the value timm's models have, per family; other settings are timm's own too.
TIMM_SETTINGS: dict[str, dict[str, Any]] = {
    "vit": {
        "stem": "linear",
        "residual": "pre_norm",
        "talking_heads": False,
        "class_layer": 0,
        "classifier": "linear",
    },
    "cait": {
        "stem": "linear",
        "residual": "pre_norm",
        "talking_heads": True,
        "num_branches": 1,
        "class_in_keys": True,
        "class_layer_scale": True,
        "classifier": "linear",
        "distilled": False,
    },
    "resmlp": {
        "stem": "linear",
        "norm": "affine",
        "post_norm": False,
        "activation": "gelu",
        "positions": False,
        "communication": "linear",
        "pool": "average",
        "classifier": "linear",
        "distilled": False,
    },
}


def to_timm(model: Model) -> dict[str, Tensor]:
    """A copy of the weights under timm's names; a ValueError says why where timm has no such model.

    DeiT and DeiT III fit timm's models of these names, parallel branches its `vit_small_patch16_18x2_224` and kin.
    Settings carry over: `class_position=False` is timm's `no_embed_class`, `layer_scale` its `init_values`,
    `pool="average"` its `class_token=False, global_pool="avg", fc_norm=False`.
    """
    if model.is_folded:
        raise ValueError("a folded model has other weights than timm's: convert the model that was folded")
    state = model.timm_state()
    if state is not None:
        return state
    reason = why_not(model)
    if reason:
        raise ValueError(f"timm has no {model.name or model.family} as this one: {reason}")
    return translate_to_timm(model)


def why_not(model: Model) -> str:
    """Why timm has no such model, empty where it has."""
    family, config = model.family, dataclasses.asdict(model.config)
    if family not in TIMM_SETTINGS:
        return f"it has no {family}"
    for setting, value in TIMM_SETTINGS[family].items():
        if config[setting] != value:
            return f"{setting}={config[setting]!r}, timm's has {value!r}"
    if family == "cait" and (config["layer_scale"] is None or config["class_depth"] == 0):
        return "timm's CaiT always has LayerScale and a class token"
    if family == "vit" and config["distilled"] and not config["class_position"]:
        return "timm's distilled ViT has positions for its special tokens, class_position=True"
    return ""
