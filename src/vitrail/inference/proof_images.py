"""Real images that an export is proved, calibrated and timed on: a run's val, given data, or a named few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.datasets import open_dataset
from vitrail.data.dense.class_table import apply_table, table_of
from vitrail.data.dense.contract import MaskBatch, SegmentationData
from vitrail.data.dense.dense_sources import MaskSubset
from vitrail.data.dense.opening import open_segmentation
from vitrail.data.dense.samples import MaskSamples
from vitrail.data.dense.segmentation_view import SeenWithMask
from vitrail.data.loader import ImageLoader, Loader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.data.sampler import Sampler
from vitrail.data.sources.files import ImageFiles
from vitrail.data.stored import Subset
from vitrail.inference.class_names import map_targets, match_classes
from vitrail.inference.passes import find_recipe, open_data
from vitrail.inference.trained import Trained
from vitrail.settings.recipe import Recipe

EMBEDDED = "fashion"  # data that is always there
_BATCH = 64


@dataclass(frozen=True, eq=False)
class ProofImages:
    """Images as a model is asked about them."""

    pixels: Tensor  # uint8 [images, channels, height, width]
    targets: Tensor | None  # in the model's order of classes; None: nobody knows
    # int64 [images], -1 without a label; of segmentation uint8 [images, height, width], IGNORED where none is known
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
        if given := [key for key in ("split", "level") if key in settings]:
            raise ValueError(f"{given[0]}= is of data that {source} does not bring: add data=SPEC")
        told = f"val of {EMBEDDED}, which is embedded: not what the model is for"
        return _read(trained, open_dataset(EMBEDDED, "val"), None, limit=limit, told=told)
    if not trained.model.is_dense:
        data, level = open_data(source, settings, trained, labels="optional")
    elif "data" not in settings and recipe is not None:
        return _read_masks(trained, open_segmentation(recipe.data), limit=limit)
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
    chosen, unread = _choose(len(data), limit), list[Problem]()
    loader = ImageLoader(
        Subset(data, chosen),
        transform=trained.view,
        sampler=_in_order(chosen),
        level=level,
        num_workers=0,
        quarantine=NotingQuarantine(unread.append),
    )
    batches = list(loader.epoch(0))
    _check_read(len(batches), unread, told=told)
    targets = None
    if level is not None:
        order = match_classes(trained, data.level(level).classes, name=data.name)
        targets = torch.cat([map_targets(batch.targets, order, num_classes=trained.num_classes) for batch in batches])
    return ProofImages(torch.cat([batch.images for batch in batches]), targets, told)


def _read_masks(trained: Trained, data: SegmentationData, *, limit: int) -> ProofImages:
    """Images of a run's val with the masks of what is seen of them."""
    val, told = data.val, f"{data.val.split} of {data.val.name}"
    ignore = trained.description.get("ignore", ())
    table = table_of(data.classes, known=trained.class_names, ignore=ignore, name=val.name)
    chosen, unread = _choose(len(val), limit), list[Problem]()
    loader: Loader[MaskBatch] = Loader(
        MaskSubset(val, chosen),
        make=MaskSamples(SeenWithMask(trained.view)),
        sampler=_in_order(chosen),
        num_workers=0,
        quarantine=NotingQuarantine(unread.append),
    )
    batches = list(loader.epoch(0))
    _check_read(len(batches), unread, told=told)
    masks = torch.cat([apply_table(batch.masks, table) for batch in batches])
    return ProofImages(torch.cat([batch.images for batch in batches]), masks, told)


def _choose(available: int, limit: int) -> np.ndarray:
    """Places of images that are spread evenly."""
    count = min(limit, available)
    return np.arange(count) * available // max(1, count)


def _in_order(chosen: np.ndarray) -> Sampler:
    return Sampler(len(chosen), batch_size=max(1, min(_BATCH, len(chosen))), is_training=False)


def _check_read(num_batches: int, unread: Sequence[Problem], *, told: str) -> None:
    if not num_batches:
        first = f" ({unread[0].path}: {unread[0].detail})" if unread else ""
        raise ValueError(f"none of the images of {told} could be read{first}: give others with --images or data=")
