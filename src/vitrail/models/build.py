"""From a family and settings to a model with initial weights."""

import dataclasses
from typing import Any

from vitrail.models.cait import CaiT, CaiTConfig
from vitrail.models.config import ImageConfig, config_from_settings
from vitrail.models.contract import IMAGENET_MEAN, IMAGENET_STD, Model, Preprocessing, for_channels
from vitrail.models.patchconvnet import PatchConvNet, PatchConvNetConfig
from vitrail.models.resmlp import ResMLP, ResMLPConfig
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.models.timm_config import TimmConfig, TimmSettings
from vitrail.models.vit import VisionTransformer, ViTConfig

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
