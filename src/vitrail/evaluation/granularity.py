"""Levels of labels from coarse to fine, and which of them a ranking can be conditioned by (thesis 2.4.4)."""

import numpy as np

from vitrail.data.contract import Dataset, Level

NO_LABELS = "∅"  # the level of a run that used no labels, as the thesis writes it


def order_levels(data: Dataset) -> tuple[str, ...]:
    """The levels that give an image one label, from the coarsest to the finest, as the tables 2.5 and 2.6 have them."""
    single = [name for name, level in data.levels.items() if not level.is_multiple and bool((level.labels >= 0).any())]
    if not single:
        raise ValueError(f"{data.name} has no labels of which an image has one: there is nothing to rank by")
    return tuple(sorted(single, key=lambda name: len(data.levels[name].classes)))


def find_coarser(data: Dataset, level: str) -> tuple[str, ...]:
    """The levels with fewer classes that follow from those of `level`, from the coarsest to the finest."""
    fine = data.level(level)
    return tuple(name for name in order_levels(data) if name != level and _follows(data.levels[name], fine))


def choose_coarse(data: Dataset, level: str, *, trained_on: str | None = None, wanted: str | None = None) -> str | None:
    """The level to condition a ranking at `level` by: the one that is wanted, else the one that the model was trained
    on, else the finest; of those that are coarser than `level`. None: there is no such level."""
    coarser = find_coarser(data, level)
    if wanted is not None:
        return wanted if wanted in coarser else None
    return trained_on if trained_on in coarser else next(reversed(coarser), None)


def _follows(coarse: Level, fine: Level) -> bool:
    """Whether there are fewer coarse classes, and all images of a fine class are of the same."""
    if len(coarse.classes) >= len(fine.classes):
        return False
    is_known = (coarse.labels >= 0) & (fine.labels >= 0)
    pairs = np.unique(np.stack([fine.labels[is_known], coarse.labels[is_known]]), axis=1)
    return pairs.shape[1] > 0 and len(np.unique(pairs[0])) == pairs.shape[1]
