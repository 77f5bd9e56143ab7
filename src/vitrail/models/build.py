"""From a family and settings to a model with initial weights."""

import dataclasses
import inspect
from typing import Any

from vitrail.models.cait import CaiT, CaiTConfig
from vitrail.models.config import ImageConfig, config_from_settings
from vitrail.models.contract import IMAGENET_MEAN, IMAGENET_STD, Model, Preprocessing, for_channels
from vitrail.models.patchconvnet import PatchConvNet, PatchConvNetConfig
from vitrail.models.resmlp import ResMLP, ResMLPConfig
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.models.timm_config import TimmConfig, TimmSettings
from vitrail.models.vit import VisionTransformer, ViTConfig
from vitrail.settings.own import load_own, working_directory_on_path

OWN = "own"  # the family of what a user's own function makes
FAMILIES: dict[str, tuple[type[ImageConfig], type[Model]]] = {
    VisionTransformer.family: (ViTConfig, VisionTransformer),
    CaiT.family: (CaiTConfig, CaiT),
    ResMLP.family: (ResMLPConfig, ResMLP),
    PatchConvNet.family: (PatchConvNetConfig, PatchConvNet),
}


def build_model(family: str, *, name: str, settings: dict[str, Any], crop_ratio: float = 0.875) -> Model:
    """A model of a family with initial weights."""
    config_class, model_class = FAMILIES[family]
    config = config_from_settings(config_class, name, settings)
    model = model_class.made(config)
    model.name = name
    mean, std = (for_channels(statistic, config.in_channels) for statistic in (IMAGENET_MEAN, IMAGENET_STD))
    model.preprocessing = Preprocessing(crop_ratio, mean=mean, std=std)
    return model


def build_timm_model(timm_name: str, /, **settings: Any) -> TimmBackbone:
    """A timm backbone behind our contract."""
    name = f"timm/{timm_name}"
    checked = config_from_settings(TimmSettings, name, settings)
    model = TimmBackbone.made(TimmConfig(timm_name=timm_name, **dataclasses.asdict(checked)))
    model.name = name
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
