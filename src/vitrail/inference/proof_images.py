"""Real images that an export is proved, calibrated and timed on: a run's val, given data, or a named few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.datasets import open_dataset
from vitrail.data.dense.opening import open_segmentation
from vitrail.data.loader import ImageLoader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.data.sampler import Sampler
from vitrail.data.sources.files import ImageFiles
from vitrail.data.stored import Subset
from vitrail.inference.class_names import map_targets, match_classes
from vitrail.inference.passes import find_recipe, open_data
from vitrail.inference.trained import Trained
from vitrail.settings.recipe import Recipe

EMBEDDED = "fashion"  # data that is always there


@dataclass(frozen=True, eq=False)
class ProofImages:
    """Images as a model is asked about them."""

    pixels: Tensor  # uint8 [images, channels, height, width]
    targets: Tensor | None  # int64 [images], in the model's order of classes, -1 without a label; None: nobody knows
    told: str  # where they are from

    def __len__(self) -> int:
        return len(self.pixels)

    def first(self, count: int) -> "ProofImages":
        """The first of them."""
        targets = None if self.targets is None else self.targets[:count]
        return ProofImages(self.pixels[:count], targets, self.told)


def gather_images(
    trained: Trained, source: str, settings: Mapping[str, Any], *, paths: Sequence[str] = (), limit: int
) -> ProofImages:
    """Up to `limit` images, spread evenly over the data: `paths`, data=, the run's own val, or the embedded ones."""
    if paths:
        return _read(trained, ImageFiles(list(paths)), None, limit=limit, told=f"{len(paths)} named images")
    data: Dataset
    recipe = _recipe_with_val(trained, source)
    if "data" not in settings and recipe is None:
        told = f"val of {EMBEDDED}, which is embedded: not what the model is for"
        return _read(trained, open_dataset(EMBEDDED, "val"), None, limit=limit, told=told)
    if not trained.model.is_dense:
        data, level = open_data(source, settings, trained, labels="optional")
    elif "data" not in settings and recipe is not None:
        data, level = open_segmentation(recipe.data).val, ""
    else:
        data, level = open_dataset(str(settings["data"]), str(settings.get("split", "val")), labels="ignored"), ""
    is_known = bool(level) and trained.num_classes > 0 and not data.level(level).is_multiple
    return _read(trained, data, level if is_known else None, limit=limit, told=f"{data.split} of {data.name}")


def _recipe_with_val(trained: Trained, source: str) -> Recipe | None:
    """The recipe of a run whose own images can be read here."""
    recipe = find_recipe(source)
    if recipe is None or recipe.data.spec is None or not recipe.data.is_measured:
        return None
    return recipe if not trained.model.is_dense or trained.task == "segment" else None


def _read(trained: Trained, data: Dataset, level: str | None, *, limit: int, told: str) -> ProofImages:
    count = min(limit, len(data))
    chosen = Subset(data, np.arange(count) * len(data) // count)
    unread: list[Problem] = []
    loader = ImageLoader(
        chosen,
        transform=trained.view,
        sampler=Sampler(len(chosen), batch_size=min(64, count), is_training=False),
        level=level,
        num_workers=0,
        quarantine=NotingQuarantine(unread.append),
    )
    batches = list(loader.epoch(0))
    if not batches:
        raise ValueError(f"none of the {count} images of {told} could be read ({unread[0].path}: {unread[0].detail})")
    targets = None
    if level is not None:
        order = match_classes(trained, data.level(level).classes, name=data.name)
        targets = torch.cat([map_targets(batch.targets, order, num_classes=trained.num_classes) for batch in batches])
    return ProofImages(torch.cat([batch.images for batch in batches]), targets, told)
