"""vitrail: DeiT, CaiT, ResMLP, PatchConvNet and DeiT III; this module holds the public names and nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.data.datasets import open_dataset
    from vitrail.explain.drawing import draw_maps
    from vitrail.explain.maps import attention_maps
    from vitrail.gallery.gallery import Gallery
    from vitrail.inference import fold
    from vitrail.inference.trained import load_pack, load_trained
    from vitrail.inspection.inspection import inspect_model
    from vitrail.models.catalog import create_model, list_models
    from vitrail.models.complexity import complexity
    from vitrail.models.contract import Features
    from vitrail.settings.own import allow_own
    from vitrail.weights import load_model, load_weights, save_model, to_timm

__version__ = "0.1.0"

__all__ = [
    "Features",
    "Gallery",
    "__version__",
    "allow_own",
    "attention_maps",
    "complexity",
    "create_model",
    "draw_maps",
    "fold",
    "inspect_model",
    "list_models",
    "load_model",
    "load_pack",
    "load_trained",
    "load_weights",
    "open_dataset",
    "save_model",
    "to_timm",
]

# Where each name lives. They are fetched on first use, so that `import vitrail` does not import torch.
_HOMES = {
    "Features": "vitrail.models.contract",
    "Gallery": "vitrail.gallery.gallery",
    "allow_own": "vitrail.settings.own",
    "attention_maps": "vitrail.explain.maps",
    "complexity": "vitrail.models.complexity",
    "create_model": "vitrail.models.catalog",
    "draw_maps": "vitrail.explain.drawing",
    "fold": "vitrail.inference",
    "inspect_model": "vitrail.inspection.inspection",
    "list_models": "vitrail.models.catalog",
    "load_model": "vitrail.weights",
    "load_pack": "vitrail.inference.trained",
    "load_trained": "vitrail.inference.trained",
    "load_weights": "vitrail.weights",
    "open_dataset": "vitrail.data.datasets",
    "save_model": "vitrail.weights",
    "to_timm": "vitrail.weights",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
