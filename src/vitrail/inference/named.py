"""Models by name, ready to use: published weights with their preprocessing and the names of ImageNet's classes."""

import dataclasses
import difflib

import timm

from vitrail.data.sources.imagenet_classes import ImageNetClasses, imagenet_classes
from vitrail.inference.trained import Trained, make_trained
from vitrail.models.catalog import CATALOG
from vitrail.models.contract import Model
from vitrail.models.published import ModelText, read_model_text
from vitrail.weights.pretrained import RANDOM, load_named

_IMAGENET = {1000: "imagenet-1k"}  # subsets by their number of classes, where timm's facts do not tell


def read_name(text: str) -> ModelText:
    """The parts of a text that names a model; an error that says what could stand in its place where it does not."""
    found = read_model_text(text)
    if found is None:
        near = difflib.get_close_matches(text.partition("@")[0].lower(), CATALOG, n=3, cutoff=0.7)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise ValueError(
            f"{text}: no such run or model{hint}; give a run's folder, a saved model's, a pack's, a name of `vitrail "
            "models`, timm/NAME or hf://OWNER/NAME"
        )
    return found


def load_by_name(text: ModelText) -> Trained:
    """The model that a text names."""
    model = load_named(text)
    classes = find_classes(model) if text.init is None else None
    if text.init not in (None, RANDOM) and model.config.num_classes == len(imagenet_classes().words):
        classes = imagenet_classes()
    description = None if classes is None else {"classes": classes.words}
    trained = make_trained(model.eval(), description, label=str(text))
    return trained if classes is None else dataclasses.replace(trained, synonyms=classes.others)


def find_classes(model: Model) -> ImageNetClasses | None:
    """The classes that published weights tell apart."""
    subset = _IMAGENET.get(model.config.num_classes)
    if model.foreign is not None:
        facts = timm.get_pretrained_cfg(model.name.partition("/")[2])
        subset = None if facts is None else timm.data.infer_imagenet_subset(facts.to_dict())
    if subset is None:
        return None
    classes = imagenet_classes(subset)
    return classes if len(classes.words) == model.config.num_classes else None
