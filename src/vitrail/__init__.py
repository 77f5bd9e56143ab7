"""vitrail: DeiT, CaiT, ResMLP, PatchConvNet and DeiT III; this module holds the public names and nothing else."""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import alone would take longer than all of this
if TYPE_CHECKING:
    from vitrail.api import Run, plan, pretrain, train
    from vitrail.data.datasets import open_dataset
    from vitrail.data.doctor.checking import check_data as check
    from vitrail.explain.drawing import draw_maps
    from vitrail.explain.maps import attention_maps
    from vitrail.gallery.gallery import Gallery
    from vitrail.inference.evaluating import evaluate
    from vitrail.inference.export_source import export
    from vitrail.inference.folding import fold
    from vitrail.inference.probing import probe
    from vitrail.inference.trained import load_pack, load_trained
    from vitrail.inference.translators import load_translator
    from vitrail.inspection.comparison import compare_inspections
    from vitrail.inspection.inspection import inspect_model
    from vitrail.model_charts import plot_models
    from vitrail.models.catalog import list_models
    from vitrail.models.complexity import complexity
    from vitrail.models.contract import Features
    from vitrail.recipes import list_recipes
    from vitrail.settings.own import allow_own
    from vitrail.settings.recipe import Recipe
    from vitrail.weights import load_model, load_weights, save_model, to_timm
    from vitrail.weights.pretrained import create_model

__version__ = "0.1.0"

__all__ = [
    "Features",
    "Gallery",
    "Recipe",
    "Run",
    "__version__",
    "allow_own",
    "attention_maps",
    "check",
    "compare_inspections",
    "complexity",
    "create_model",
    "draw_maps",
    "evaluate",
    "export",
    "fold",
    "inspect_model",
    "list_models",
    "list_recipes",
    "load_model",
    "load_pack",
    "load_trained",
    "load_translator",
    "load_weights",
    "open_dataset",
    "plan",
    "plot_models",
    "pretrain",
    "probe",
    "save_model",
    "to_timm",
    "train",
]

# Where each name lives, and by which name if another. They are fetched on first use, so that `import vitrail` does not
# import torch.
_HOMES = {
    "Features": "vitrail.models.contract",
    "Gallery": "vitrail.gallery.gallery",
    "Recipe": "vitrail.settings.recipe",
    "Run": "vitrail.api",
    "allow_own": "vitrail.settings.own",
    "attention_maps": "vitrail.explain.maps",
    "check": "vitrail.data.doctor.checking:check_data",
    "compare_inspections": "vitrail.inspection.comparison",
    "complexity": "vitrail.models.complexity",
    "create_model": "vitrail.weights.pretrained",
    "draw_maps": "vitrail.explain.drawing",
    "evaluate": "vitrail.inference.evaluating",
    "export": "vitrail.inference.export_source",
    "fold": "vitrail.inference.folding",
    "inspect_model": "vitrail.inspection.inspection",
    "list_models": "vitrail.models.catalog",
    "list_recipes": "vitrail.recipes",
    "load_model": "vitrail.weights",
    "load_pack": "vitrail.inference.trained",
    "load_trained": "vitrail.inference.trained",
    "load_translator": "vitrail.inference.translators",
    "load_weights": "vitrail.weights",
    "open_dataset": "vitrail.data.datasets",
    "plan": "vitrail.api",
    "plot_models": "vitrail.model_charts",
    "pretrain": "vitrail.api",
    "probe": "vitrail.inference.probing",
    "save_model": "vitrail.weights",
    "to_timm": "vitrail.weights",
    "train": "vitrail.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    home, _, own_name = _HOMES[name].partition(":")
    value = getattr(import_module(home), own_name or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
