"""The re-training control of CaiT 4.1.2: train anew with the LayerScale weights another training found, kept fixed."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.layers.residual import LayerScale
from vitrail.models.contract import Model
from vitrail.models.trunk import TrunkConfig


def layer_scales(model: Model) -> dict[str, Tensor]:
    """Copies of all LayerScale weights of a model, by the name of their module."""
    return {
        name: module.weight.detach().clone() for name, module in model.named_modules() if isinstance(module, LayerScale)
    }


@torch.no_grad()
def freeze_layer_scales(model: Model, values: Mapping[str, Tensor]) -> None:
    """Set every LayerScale of a ViT or CaiT to `values`, which `layer_scales` gave, and keep it there.

    The model's config then says so, and a saved copy is frozen as well.
    """
    if not isinstance(model.config, TrunkConfig):
        raise ValueError(f"LayerScale can be frozen in a ViT or a CaiT, not in {model.name or type(model).__name__}")
    own = {name: module for name, module in model.named_modules() if isinstance(module, LayerScale)}
    if own.keys() != values.keys() or any(values[name].shape != own[name].weight.shape for name in own):
        raise ValueError(f"the model has {len(own)} LayerScales and the values are of another model: use the same kind")
    for name, module in own.items():
        module.weight.copy_(values[name])
        module.weight.requires_grad_(False)
    model.config = dataclasses.replace(model.config, layer_scale_frozen=True)
