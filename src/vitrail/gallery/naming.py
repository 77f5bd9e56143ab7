"""Labels of images that come to a gallery or get another name, by what the gallery knows of the class."""

import torch
from torch import Tensor

from vitrail.gallery.gallery_answers import UNKNOWN, UNNAMED, Contents


def label_rows(contents: Contents, label: str, *, coarse: str | None) -> tuple[Tensor, dict[str, tuple[str, ...]]]:
    """The labels int32 [levels] of images that get this label, and the classes that there are then.

    Coarser labels are those of the label's other images, and the coarse class that a person says.
    """
    if not label.strip():
        raise ValueError("the label is empty: give the class a name")
    for name in (label, coarse):
        if name in (UNKNOWN, UNNAMED):
            raise ValueError(f"{name!r} is an answer of galleries, not a class: choose another name")
    manifest = contents.facts
    levels = dict(manifest.levels)
    own = torch.full((len(levels),), -1, dtype=torch.int32)
    if label in contents.counts(manifest.fine):
        index = levels[manifest.fine].index(label)
        own = torch.tensor(next(found for found in contents.table.label_sets() if found[0] == index), dtype=torch.int32)
    if coarse is not None:
        if manifest.coarse is None:
            raise ValueError("the gallery has no coarse labels: leave --coarse out")
        known = own[list(levels).index(manifest.coarse)]
        if known >= 0 and levels[manifest.coarse][known] != coarse:
            raise ValueError(f"{label!r} is of {manifest.coarse} {levels[manifest.coarse][known]!r}, not {coarse!r}")
        _set(own, levels, manifest.coarse, coarse)
    _set(own, levels, manifest.fine, label)
    return own, levels


def _set(own: Tensor, levels: dict[str, tuple[str, ...]], level: str, name: str) -> None:
    if name not in levels[level]:
        levels[level] = (*levels[level], name)
    own[list(levels).index(level)] = levels[level].index(name)
