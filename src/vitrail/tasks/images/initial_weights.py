"""A model of images as a recipe asks for it, and the weights it starts from."""

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.data.sources.imagenet_classes import imagenet_classes
from vitrail.models.catalog import create_model
from vitrail.models.contract import Model
from vitrail.models.layer_scales import freeze_layer_scales, layer_scales
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.storage import read_json_object
from vitrail.tasks.contract import Initial
from vitrail.weights import load_weights
from vitrail.weights.pretrained import find_weights, read_named
from vitrail.weights.weight_sources import WeightSource

_LOGGER = logging.getLogger(__name__)


def make_backbone(recipe: ImageRecipe, *, num_classes: int, **settings: Any) -> Model:
    """The recipe's model for so many classes; the seed decides its initial weights."""
    torch.manual_seed(recipe.seed)
    settings = {**recipe.model.settings, "image_size": recipe.image_size, "num_classes": num_classes, **settings}
    for name in ("drop_path", "dropout"):
        if (rate := getattr(recipe.regularisation, name)) is not None:
            settings[name] = rate
    if recipe.model.layer_scale_of is not None:
        settings["layer_scale_frozen"] = True
    model = create_model(recipe.model.name, **settings)
    if recipe.evaluation.crop_ratio is not None:
        model.preprocessing = replace(model.preprocessing, crop_ratio=recipe.evaluation.crop_ratio)
    return model


def locate_weights(source: str) -> str:
    """Where the weights of a source lie: of a run in the folder of its model."""
    folder = Path(source).expanduser() / "model"
    return str(folder) if folder.is_dir() else source


def load_initial(
    model: Model, source: str | Initial, *, classes: Sequence[str] | None, interpolation: str = "bicubic"
) -> bool:
    """Weights to start from, of a run, a file or an earlier stage; a classifier of other classes is left out.

    The answer says whether it was, so that the model's is new.
    """
    place: WeightSource
    known: tuple[str, ...] | None
    if isinstance(source, Initial):
        place, grid, label = source.weights, source.grid, "the stage before"
        known = tuple(source.description["classes"]) if "classes" in source.description else None
    else:
        label = locate_weights(source)
        place, grid = find_weights(model, label), None
        named = read_named(label, model=model.trunk.name)
        known = read_classes(Path(label)) if named is None else imagenet_classes().ids  # as its data sets have them
    is_other = known is not None and classes is not None and known != tuple(classes)
    try:
        load_weights(model, place, reset_head=is_other, interpolation=interpolation, grid=grid)
    except ValueError:  # of what does not fit either without the classifier the next attempt speaks
        load_weights(model, place, reset_head=True, interpolation=interpolation, grid=grid)
        is_other = True
    kept = "; its classifier is for other classes, so it starts anew" if is_other else ", with their classifier"
    _LOGGER.info("weights from %s%s", label, kept if model.config.num_classes else "")
    return is_other and model.config.num_classes > 0


def take_layer_scales(model: Model, source: str, *, classes: Sequence[str] | None) -> None:
    """The LayerScale weights of another training of the same model, which stay as they are; all else begins anew."""
    trained = deepcopy(model)
    load_initial(trained, source, classes=classes)
    freeze_layer_scales(model.trunk, layer_scales(trained.trunk))
    _LOGGER.info("LayerScale from %s, kept fixed; all else begins anew", source)


def read_classes(folder: Path) -> tuple[str, ...] | None:
    """The names of the classes that a saved model tells apart; None where it has none."""
    for path in (folder.expanduser() / name for name in ("task.json", "classes.json")):
        if path.is_file():
            remedy = "restore it, or delete it to do without the names of the classes"
            classes = read_json_object(path, remedy=remedy).get("classes")
            if classes is not None and not isinstance(classes, list):
                raise ValueError(f"{path} must hold a list of classes, not {str(classes)[:80]!r}: {remedy}")
            return None if classes is None else tuple(map(str, classes))
    return None
