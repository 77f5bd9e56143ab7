"""From a family and settings to a model with initial weights."""

import dataclasses
import inspect
from typing import Any

import torch

from vitrail.models.cait import CaiT, CaiTConfig
from vitrail.models.contract import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ImageConfig,
    Model,
    Preprocessing,
    config_from_settings,
    for_channels,
    materialize,
)
from vitrail.models.patchconvnet import PatchConvNet, PatchConvNetConfig
from vitrail.models.resmlp import ResMLP, ResMLPConfig
from vitrail.models.timm_backbone import TimmBackbone, TimmConfig, TimmSettings
from vitrail.models.vit import VisionTransformer, ViTConfig
from vitrail.settings.own import load_own, working_directory_on_path

OWN = "own"  # the family of what a user's own function makes
FAMILIES: dict[str, tuple[type[ImageConfig], type[Model]]] = {
    "vit": (ViTConfig, VisionTransformer),
    "cait": (CaiTConfig, CaiT),
    "resmlp": (ResMLPConfig, ResMLP),
    "patchconvnet": (PatchConvNetConfig, PatchConvNet),
}


def build_model(family: str, *, name: str, settings: dict[str, Any], crop_ratio: float = 0.875) -> Model:
    """A model of a family; memory is taken once, by the initial weights."""
    config_class, model_class = FAMILIES[family]
    config = config_from_settings(config_class, name, settings)
    with torch.device("meta"):
        model = model_class(config)
    model.name, model.family = name, family
    mean, std = (for_channels(statistic, config.in_channels) for statistic in (IMAGENET_MEAN, IMAGENET_STD))
    model.preprocessing = Preprocessing(crop_ratio, mean=mean, std=std)
    return materialize(model)


def build_timm_model(timm_name: str, /, **settings: Any) -> Model:
    """A timm backbone behind our contract."""
    name = f"timm/{timm_name}"
    checked = config_from_settings(TimmSettings, name, settings)
    model = TimmBackbone(TimmConfig(timm_name=timm_name, **dataclasses.asdict(checked)))
    model.init_pooling()  # the rest of init_weights is what timm just did
    model.name, model.family = name, "timm"
    return model


def build_own_model(name: str, settings: dict[str, Any]) -> Model:
    """What a function of the user's own makes of the settings: a `Model`, with its initial weights.

    One of our own families, differently made, is saved as what it is, and needs no code of the user's to be loaded.
    """
    make = load_own(name, what="model")
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        raise ValueError(f"the model {name}: {error}") from None
    with working_directory_on_path():
        model = make(**settings)
    if not isinstance(model, Model):
        raise ValueError(f"the model {name} must be a vitrail.models.contract.Model, not a {type(model).__name__}")
    if not model.family:
        model.name, model.family, model.own_settings = name, OWN, settings
    return model
