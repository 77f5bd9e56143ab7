"""Models by name with published weights, or with those of a file."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.models.build import build_timm_model
from vitrail.models.catalog import TIMM_PREFIX
from vitrail.models.catalog import create_model as create_initial
from vitrail.models.contract import Model
from vitrail.models.published import (
    ModelText,
    PublishedWeights,
    choose_published,
    list_published,
    name_parts,
    read_model_text,
    read_unless_there,
)
from vitrail.models.resizing import count_patches
from vitrail.models.timm_config import TimmConfig, find_timm_facts
from vitrail.models.timm_making import make_backbone
from vitrail.settings.model import PRETRAINED
from vitrail.weights.load import dialect_of, fit_weights, install
from vitrail.weights.published_files import places_of, places_of_timm
from vitrail.weights.translate import square_side, translate_to_ours
from vitrail.weights.weight_files import Weights, read_file
from vitrail.weights.weight_sources import WeightSource, read_weights

RANDOM = "random"  # in place of a file: the weights that a model begins with


def create_model(name: str, *, pretrained: Any = False, **settings: Any) -> Model:
    """Build a model of the catalogue, `timm/NAME` of timm, or `module:function` of one's own.

    It has initial weights; with `pretrained` the published ones, whose size and preprocessing it then has: True stands
    for those that the name alone means, a text such as "384", "in22k" or "384,in22k" for others. Another number of
    classes gets a new head, another image size resized positions.

    Settings override the model's config: image_size, num_classes, in_channels, dim, depth, num_heads, patch_size,
    stem, drop_path and whatever else the family has; an unknown one is an error.
    """
    if not isinstance(pretrained, (bool, str)):
        raise ValueError(f"pretrained is True, False or a text such as '384,in22k', not {pretrained!r}")
    text = read_model_text(name) if isinstance(name, str) else None
    if not pretrained:
        if text is not None and (text.parts or text.init is not None):
            raise ValueError(f"{name} names weights: add pretrained=True, or leave out what follows {text.name}")
        return create_initial(name, **settings)
    if text is None:
        create_initial(name, **settings)  # says what is wrong with the name
        raise ValueError(f"{name} has no published weights: leave pretrained out")
    if isinstance(pretrained, str):
        text = replace(text, parts=(*text.parts, *pretrained.split(",")))
    return load_named(text, **settings)


def load_named(text: ModelText, **settings: Any) -> Model:
    """The model that a text names, with its weights, the size they were trained for and their preprocessing."""
    if text.init == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return create_initial(text.name, **settings)
    if text.is_timm:
        return _load_timm(text, settings)
    published: PublishedWeights | None
    if text.init is None:
        published = choose_published(text.name, text.parts)
        weights = read_published(published)
        known = find_settings(text.name, weights, _settings_of(published))
    else:
        weights = read_weights(text.init)
        published = choose_published(text.name, text.parts) if text.parts else None
        known = find_settings(text.name, weights, {} if published is None else _settings_of(published))
        published = published or _published_for(text.name, known.get("image_size"))
    model = create_initial(text.name, **{**known, **settings})
    is_other = model.config.num_classes != known["num_classes"]
    install(model, fit_weights(model, weights, reset_head=is_other))
    if published is not None and published.crop_ratio is not None:
        model.preprocessing = replace(model.preprocessing, crop_ratio=published.crop_ratio)
    return model


def find_weights(model: Model, source: str) -> WeightSource:
    """What `load_weights` takes: of "pretrained" the weights published for the model, of timm's those it would load.

    "pretrained@384,in22k" chooses among them. Other texts are what they are.
    """
    text = read_named(source, model=model.trunk.name)
    if text is None or text.init is not None:
        return source
    if not text.is_timm:
        return places_of(choose_published(text.name, text.parts)).fetch()
    config = model.trunk.config
    return _timm_state(config, name=text.name) if isinstance(config, TimmConfig) else places_of_timm(text.name).fetch()


def read_named(source: str, *, model: str) -> ModelText | None:
    """The name of published weights in a text of weights to start from, where that is none of a file or folder."""
    kind, has_parts, parts = source.partition("@")
    if kind == PRETRAINED:
        source = name_parts(model, parts.split(",") if has_parts else ())
        if read_model_text(source) is None:
            raise ValueError(f"{model} has no published weights: give a file, init=FILE")
        return read_model_text(source)
    return read_unless_there(source)


def read_published(published: PublishedWeights) -> Weights:
    """Published weights; a file that does not hold them is named, with what to do about it."""
    path = places_of(published).fetch()
    try:
        return read_file(path, label=published.text)
    except ValueError as error:
        raise ValueError(f"{error}: delete {path}, and it is downloaded again") from None


def find_settings(name: str, weights: Weights, known: Mapping[str, Any]) -> dict[str, Any]:
    """With which settings the model called `name` fits the weights: classes, and the image size where they tell."""
    with torch.device("meta"):
        model = create_initial(name, **known)
    found = translate_to_ours(weights.state, model, dialect=dialect_of(model, weights), grid=weights.grid).state
    heads = (value for key, value in found.items() if key.startswith("head.") and key.endswith("weight"))
    settings = {**known, "num_classes": next((len(value) for value in heads), 0)}
    count = count_patches(model, found)
    grid = weights.grid
    if grid is None and count is not None and (side := square_side(count)):
        grid = (side, side)
    if "image_size" not in known and grid is not None and count is not None:
        patch_size = int(getattr(model.config, "patch_size", 16))
        height, width = (side * patch_size for side in grid)
        settings["image_size"] = height if height == width else (height, width)
    return settings


def _settings_of(published: PublishedWeights) -> dict[str, Any]:
    return {"image_size": published.image_size}


def _published_for(name: str, image_size: Any) -> PublishedWeights | None:
    """Weights of that size, whose preprocessing those of a file are taken to have."""
    return next((weights for weights in list_published(name) if weights.image_size == image_size), None)


def _load_timm(text: ModelText, settings: Mapping[str, Any]) -> Model:
    name = text.name.removeprefix(TIMM_PREFIX)
    if text.parts:
        raise ValueError(f"{text}: timm writes how weights were trained behind a dot, {text.name}.TAG")
    facts = find_timm_facts(name)
    num_classes = int(facts.get("num_classes", 1000))
    if text.init is None:
        model = build_timm_model(name, **{"num_classes": num_classes, **settings})
        weights = Weights(_timm_state(model.config, name=text.name), text.name)
    else:
        weights = read_weights(text.init)
        num_classes = _count_classes(weights.state, facts, default=num_classes)
        model = build_timm_model(name, **{"num_classes": num_classes, **settings})
    has_head = model.config.num_classes == num_classes and model.config.has_own_classifier
    install(model, fit_weights(model, weights, reset_head=not has_head))
    return model


def _count_classes(state: Mapping[str, Tensor], facts: Mapping[str, Any], *, default: int) -> int:
    """Rows of timm's classifier in a state dict."""
    classifier = facts.get("classifier") or ""
    classifier = classifier if isinstance(classifier, str) else classifier[0]
    weight = state.get(f"{classifier}.weight", state.get(f"backbone.{classifier}.weight"))
    return default if weight is None else len(weight)


def _timm_state(config: TimmConfig, *, name: str) -> dict[str, Tensor]:
    """The weights called `name` that timm offers, as timm fits them to the image size and channels of a backbone."""
    path = places_of_timm(name).fetch()
    try:
        weights = read_file(path, label=name).state
    except ValueError as error:
        raise ValueError(f"{error}: delete {path}, and it is downloaded again") from None
    num_classes = int(find_timm_facts(name.removeprefix(TIMM_PREFIX)).get("num_classes", 1000))
    head: dict[str, Any] = {"pool": "average", "num_heads": 1, "classifier": "linear", "distilled": False}
    plain = replace(config, num_classes=num_classes, drop_path=0.0, **head)
    with _one_line(name, config.timm_name):
        state: dict[str, Tensor] = make_backbone(plain, weights=weights).state_dict()
    return state


@contextlib.contextmanager
def _one_line(name: str, timm_name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{name}: its weights do not fit timm/{timm_name}: {reason}") from None
