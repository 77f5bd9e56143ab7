"""What a user says on top of a recipe, on the command line or in Python."""

import logging
from collections.abc import Mapping
from typing import Any

from vitrail.settings.model import PRETRAINED
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change, long_key

_LOGGER = logging.getLogger(__name__)
_NAME, _SETTINGS = "model.name", "model.settings"


def override(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with what a user says in place of it.

    Settings of the model belong to the model that the recipe was written for: with another one they are left out, and
    a line says so. Those that the user says are kept. Weights of a run or a saved model bring their model with them,
    unless the user names one.
    """
    said = {long_key(key): value for key, value in changes.items()}
    name = said.get(_NAME)
    if name is None and (brought := _bring_model(recipe, said)) is not None:
        return change(recipe, {**changes, **brought})
    if name is None or name == recipe.model.name:
        return change(recipe, changes)
    before = recipe.model
    key = "init" if before.init is not None else "layer_scale_of"
    if before.source not in (None, PRETRAINED) and f"model.{key}" not in said:
        raise ValueError(
            f"{recipe.name} starts from {before.source}, weights of {before.name}: give those of {name} with "
            f"{key if key == 'init' else f'model.{key}'}=WEIGHTS, or null to start from none"
        )
    dropped = {**before.settings, **_in_stages(recipe)}
    stages = tuple({key: value for key, value in stage.items() if not _is_setting(key)} for stage in recipe.stages)
    model = before.model_copy(update={"settings": {}})
    changed = change(recipe.model_copy(update={"model": model, "stages": stages}), changes)
    if dropped and _SETTINGS not in said:
        listed = ", ".join(f"{key}={value}" for key, value in dropped.items())
        _LOGGER.warning("%s is trained without what %s says of %s: %s", name, recipe.name, before.name, listed)
    return changed


def _bring_model(recipe: Recipe, said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Name and settings of the model that weights to start from belong to, where the recipe's does not fit them."""
    source = said.get("model.init")
    if not isinstance(source, str) or any(map(_is_setting, said)) or _in_stages(recipe):
        return None
    from vitrail.weights.saved_trunk import find_saved_trunk

    trunk = find_saved_trunk(source)
    if trunk is None or trunk.fits(recipe.model.name, recipe.model.settings):
        return None
    listed = ", ".join(f"{key}={value}" for key, value in trunk.settings.items())
    _LOGGER.warning("the model is that of %s: %s%s", source, trunk.name, f" with {listed}" if listed else "")
    return {_NAME: trunk.name, _SETTINGS: trunk.settings}


def _in_stages(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for stage in recipe.stages:
        for key, value in stage.items():
            if _is_setting(key):
                found |= value if long_key(key) == _SETTINGS else {key.removeprefix(f"{_SETTINGS}."): value}
    return found


def _is_setting(key: str) -> bool:
    return f"{long_key(key)}.".startswith(f"{_SETTINGS}.")
