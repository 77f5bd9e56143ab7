"""Small versions of every catalogue row, with weights that make each part matter."""

from typing import Any

import torch

import vitrail
from vitrail.models.catalog import CATALOG
from vitrail.models.contract import Model

NUM_CLASSES = 7


def small_settings(name: str) -> dict[str, Any]:
    """Settings that keep a row's structure and shrink its size."""
    entry = CATALOG[name]
    settings: dict[str, Any] = {"dim": 48, "depth": 2, "num_classes": NUM_CLASSES}
    settings["image_size"] = 4 * entry.settings.get("patch_size", 16)
    if entry.family in ("vit", "cait"):
        settings["num_heads"] = 4
    return settings


def small_model(name: str, **settings: Any) -> Model:
    """A shrunk row of the catalogue."""
    return vitrail.create_model(name, **{**small_settings(name), **settings})


@torch.no_grad()
def randomize(model: Model, seed: int = 0) -> Model:
    """Random weights of a size at which every branch, scale and shift shows in the output."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.2 * noise + (0.5 if parameter.ndim == 1 else 0.0))
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model


def images_for(model: Model, batch: int = 2, seed: int = 0) -> torch.Tensor:
    """Images of the model's own size."""
    size = model.config.size
    return torch.randn(batch, model.config.in_channels, *size, generator=torch.Generator().manual_seed(seed))
