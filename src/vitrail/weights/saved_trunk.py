"""What model the weights in a run or a saved model belong to, as a recipe names it."""

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.models.catalog import CATALOG, create_model
from vitrail.weights.save import CONFIG_FILE, read_description

MODEL_FOLDER = "model"  # of a run
# They decide how a model is trained or what it answers, and not what its weights are.
_FREE = (
    *("image_size", "num_classes", "classifier", "distilled"),
    *("drop_path", "drop_path_schedule", "dropout", "init_std"),
)
# Where two models differ in one of these, neither takes the other's weights.
_SHAPES = ("in_channels", "patch_size", "stem", "dim", "depth", "num_heads", "mlp_ratio", "num_branches")


class SavedTrunk(NamedTuple):
    """A backbone of ours whose weights lie in a folder."""

    name: str  # in the catalogue
    settings: dict[str, Any]  # in which it differs from the catalogue's

    def fits(self, name: str, settings: dict[str, Any]) -> bool:
        """Whether a model of that name and settings has layers of the same sizes."""
        if name not in CATALOG or CATALOG[name].family != CATALOG[self.name].family:
            return False
        own, other = _config_of(self.name, self.settings), _config_of(name, settings)
        return all(own.get(key) == other.get(key) for key in _SHAPES)


def find_saved_trunk(source: str | os.PathLike[str]) -> SavedTrunk | None:
    """The backbone of a run or a saved model; None where there is none, or one that the catalogue does not have."""
    folder = Path(source).expanduser()
    file = next(
        (place for place in (folder / CONFIG_FILE, folder / MODEL_FOLDER / CONFIG_FILE) if place.is_file()), None
    )
    if file is None:
        return None
    content = read_description(file, label=str(source))
    settings = content["settings"]
    family, name = settings.get("trunk_family", content["family"]), settings.get("trunk_name", content["name"])
    settings = settings.get("trunk", settings)
    if name not in CATALOG or CATALOG[name].family != family or not isinstance(settings, dict):
        return None
    own = _config_of(name, {})
    changed = {key: value for key, value in settings.items() if key in own and key not in _FREE and value != own[key]}
    return SavedTrunk(name, changed)


def _config_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    with torch.device("meta"):
        return dataclasses.asdict(create_model(name, **settings).config)
