"""Boxes that were written as two corners where their format asks for a width and a height."""

from collections.abc import Iterator, Sequence

import numpy as np

from vitrail.data.dense.packed_objects import ObjectFiles, PackedObjects
from vitrail.data.doctor.examine import ExaminedSplit
from vitrail.data.doctor.findings import Case, Finding, Place
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.stored import Subset

CORNERS = "boxes look like corners"
_MOST = 0.5  # share of the boxes that must reach outside, or contradict their outlines
_NEARLY_ALL = 0.95  # share of the boxes that must fit as corners
_SLACK = 2.0  # pixels by which edges may differ: annotations are rounded


def check_corners(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    """A finding of the splits in which x, y, width and height are x, y, x and y by all appearance."""
    cases = []
    for split in splits:
        told = describe_corners(split)
        if told is not None:
            cases.append(Case((Place(split.split),), told))
    if cases:
        kind = kind_of(CORNERS)
        yield Finding(CORNERS, kind.severity, len(cases), kind.unit, tuple(cases))


def describe_corners(split: ExaminedSplit) -> str | None:
    """Why the boxes of a split look like corners; None where they do not."""
    dataset, places = split.dataset, np.arange(len(split.dataset))
    while isinstance(dataset, Subset):
        places, dataset = np.asarray(dataset.indices)[places], dataset.dataset
    if not isinstance(dataset, ObjectFiles) or dataset.objects.is_relative:
        return None
    objects, is_whole = dataset.objects, split.records["is_whole"]
    counts = np.diff(objects.starts)[places[is_whole]]
    if not counts.sum():
        return None
    numbers = np.concatenate([objects.numbers(int(place)) for place in places[is_whole]])
    borders = np.repeat(np.stack([split.records[side][is_whole] for side in ("width", "height")], axis=1), counts, 0)
    return _describe(objects, numbers, borders.astype(np.float64))


def _describe(objects: PackedObjects, numbers: np.ndarray, borders: np.ndarray) -> str | None:
    boxes = objects.boxes[numbers]
    corners = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)  # as it was written
    fits = ((corners[:, 2:] > corners[:, :2]) & (corners[:, 2:] <= borders + _SLACK)).all(axis=1)
    if fits.mean() < _NEARLY_ALL:
        return None
    extents = objects.extents(np.arange(len(objects.labels)))[numbers]
    is_outlined = ~np.isnan(extents[:, 0])
    if is_outlined.any():
        as_written, as_corners = (
            (np.abs(edges[is_outlined] - extents[is_outlined]) <= _SLACK).all(axis=1) for edges in (boxes, corners)
        )
        is_told = as_corners & ~as_written
        if is_told.mean() > _MOST:
            return f"{is_told.sum():,} of {len(is_told):,} outlines lie within x, y, x, y and not x, y, width, height"
        return None
    is_outside = (boxes[:, 2:] > borders + _SLACK).any(axis=1)
    if is_outside.mean() > _MOST:
        return f"{is_outside.sum():,} of {len(boxes):,} boxes leave their image; as x, y, x, y they fit"
    return None
