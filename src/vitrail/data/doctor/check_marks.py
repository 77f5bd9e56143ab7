"""What can be wrong with masks and objects: sizes, values that are no class, boxes outside or of no area."""

from collections.abc import Iterator, Sequence

import numpy as np

from vitrail.data.contract import Dataset, Source
from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.contract import IGNORED, DetectionSet, SegmentationSet
from vitrail.data.dense.dense_sources import DetectionSource, SegmentationSource
from vitrail.data.dense.mask_files import UNKNOWN
from vitrail.data.dense.mask_pairs import MaskPairs
from vitrail.data.dense.packed_objects import ObjectFiles
from vitrail.data.doctor.check_boxes import check_corners
from vitrail.data.doctor.examine import ExaminedSplit, Failure, Look, Marks
from vitrail.data.doctor.findings import Case, Finding, Place, Severity
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.doctor.places import listed_path, place_of
from vitrail.data.quarantine import Problem
from vitrail.data.stored import Subset

# What makes a sample one that training leaves out, and quarantine.csv lists.
_UNUSABLE = ("broken mask", "mask of another size", "values that are no class", "another size than annotated")
_PROBLEMS = (*_UNUSABLE, "box outside", "box without area", "box beside its outline", "empty mask", "nothing marked")
_SLACK = 1.0  # pixels by which a box may stick out: annotations are rounded
_LEAST_OVERLAP = 0.5  # of a box and the outline of the same object
_FEW = 0.05  # share of images with objects below which labels are thought to be astray
_MAX_HARMLESS = 200  # cases that are kept of what is only good to know


def find_look(source: Source) -> Look | None:
    """What looks at the masks or the objects of a source; None where it has neither."""
    if isinstance(source, SegmentationSource):
        return look_at_mask
    return look_at_objects if isinstance(source, DetectionSource) else None


def find_stored(dataset: Dataset, index: int) -> tuple[Dataset, int]:
    """The data set that a sample is stored in, and its place there."""
    while isinstance(dataset, Subset):
        index, dataset = int(dataset.indices[index]), dataset.dataset
    return dataset, index


def look_at_mask(dataset: Dataset, index: int, size: tuple[int, int]) -> Marks:
    """The classes in an image's mask, and what is wrong with it."""
    dataset, index = find_stored(dataset, index)
    assert isinstance(dataset, SegmentationSet)
    faults = []
    try:
        if isinstance(dataset, MaskPairs):
            values, places = dataset.code.look_up(dataset.read_stored_mask(index))
            is_unknown = places == UNKNOWN
            if is_unknown.any():
                share = f"{100 * is_unknown.mean():.3g} % of it"
                detail = f"{share}: {dataset.code.name_values(values[is_unknown])}"
                faults.append(Failure("values that are no class", detail))
        else:
            places = dataset.read_mask(index)
    except (BrokenImageError, OSError) as error:
        return Marks(frozenset(), (Failure("broken mask", str(error)),))
    if places.shape != size:
        told = f"mask of {places.shape[1]} x {places.shape[0]}"
        faults.append(Failure("mask of another size", told))
    present = set(np.flatnonzero(np.bincount(places.reshape(-1), minlength=IGNORED + 1)).tolist()) - {IGNORED, UNKNOWN}
    if not present and not faults:
        faults.append(Failure("empty mask", "no pixel of any class"))
    return Marks(frozenset(present), tuple(faults))


def look_at_objects(dataset: Dataset, index: int, size: tuple[int, int]) -> Marks:
    """The classes of an image's objects, and what is wrong with those."""
    dataset, index = find_stored(dataset, index)
    assert isinstance(dataset, DetectionSet)
    if not isinstance(dataset, ObjectFiles):
        try:
            return Marks(frozenset(dataset.read_windows(index, size).labels.tolist()), ())
        except (BrokenImageError, OSError) as error:
            return Marks(frozenset(), (Failure("broken mask", str(error)),))
    numbers = dataset.objects.numbers(index)
    present = frozenset(dataset.objects.labels[numbers].tolist())
    said = dataset.size(index)
    if said not in (None, size):
        assert said is not None
        return Marks(present, (Failure("another size than annotated", f"annotated as {said[1]} x {said[0]}"),))
    faults = [
        Failure(problem, _count(which))
        for problem, which in find_faulty_boxes(dataset, index, size).items()
        if which.any()
    ]
    if dataset.has_masks:
        is_empty = np.array([not dataset.objects.window(number, size).values.size for number in numbers], dtype=bool)
        if is_empty.any():
            faults.append(Failure("empty mask", _count(is_empty)))
    if not len(numbers):
        faults.append(Failure("nothing marked", "no objects"))
    return Marks(present, tuple(faults))


def find_faulty_boxes(dataset: ObjectFiles, index: int, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Which boxes of an image lie outside it in part or as a whole, and which have no area: bool [objects]."""
    numbers = dataset.objects.numbers(index)
    boxes = dataset.objects.scaled_boxes(numbers, size)
    height, width = size
    beyond = np.maximum(-boxes[:, :2], boxes[:, 2:] - (width, height)).max(axis=1, initial=0.0)
    outlines = dataset.objects.extents(numbers)
    if dataset.objects.is_relative:
        outlines = outlines * np.tile(size[::-1], 2)
    return {
        "box outside": beyond > _SLACK,
        "box without area": (boxes[:, 2:] <= boxes[:, :2]).any(axis=1),
        "box beside its outline": _overlap(boxes, outlines) < _LEAST_OVERLAP,
    }


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of pairs of boxes: float64 [objects], 1 where one of them has no area or is none."""
    sides = np.minimum(boxes[:, 2:], others[:, 2:]) - np.maximum(boxes[:, :2], others[:, :2])
    both = np.clip(sides, 0, None).prod(axis=1)
    areas = [(edges[:, 2:] - edges[:, :2]).clip(min=0).prod(axis=1) for edges in (boxes, others)]
    is_known = (areas[0] > 0) & (areas[1] > 0)
    return np.divide(both, areas[0] + areas[1] - both, out=np.ones(len(boxes)), where=is_known)


def _count(which: np.ndarray) -> str:
    return f"{which.sum()} of {len(which)} objects"


def count_marks(split: ExaminedSplit, num_classes: int) -> np.ndarray:
    """The number of images in which each class is marked: int64 [classes]."""
    counts = np.zeros(num_classes, dtype=np.int64)
    for marks in split.marks.values():
        counts[[place for place in marks.present if place < num_classes]] += 1
    return counts


def check_marks(splits: Sequence[ExaminedSplit], classes: Sequence[str], counts: np.ndarray) -> Iterator[Finding]:
    """Findings about masks and objects; `counts` are those of the first split, which is trained on."""
    for problem in _PROBLEMS:
        yield from _find(problem, splits)
    yield from check_corners(splits)
    yield from _find_hardly_marked(splits)
    yield from _find_unlabelled(splits)
    unmarked = [name for name, count in zip(classes, counts.tolist(), strict=True) if not count]
    if unmarked:
        kind = kind_of("class not marked")
        cases = tuple(Case((Place(name, splits[0].split),), "in no image of it") for name in unmarked)
        yield Finding("class not marked", kind.severity, len(cases), kind.unit, cases)


def _find_hardly_marked(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    """Splits in which nearly no image has an object; that none has is noted when the source is opened."""
    cases = []
    for split in splits:
        num_bare = sum(fault.problem == "nothing marked" for marks in split.marks.values() for fault in marks.faults)
        num_marked = len(split.marks) - num_bare
        if 0 < num_marked < _FEW * len(split.marks):
            cases.append(Case((Place(split.split),), f"{num_marked:,} of {len(split.marks):,} images have an object"))
    if cases:
        kind = kind_of("hardly any objects")
        yield Finding("hardly any objects", kind.severity, len(cases), kind.unit, tuple(cases))


def _find_unlabelled(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    """Splits with masks, none of which has a pixel of a class."""
    cases = []
    for split in splits:
        is_masked = len(split.dataset) > 0 and isinstance(find_stored(split.dataset, 0)[0], SegmentationSet)
        if is_masked and split.marks and all(_is_empty(marks) for marks in split.marks.values()):
            cases.append(Case((Place(split.split),), f"{len(split.marks):,} masks, and no pixel of any class"))
    if cases:
        kind = kind_of("no labelled pixels")
        yield Finding("no labelled pixels", kind.severity, len(cases), kind.unit, tuple(cases))


def _is_empty(marks: Marks) -> bool:
    return any(fault.problem == "empty mask" for fault in marks.faults)


def _find(problem: str, splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    kind = kind_of(problem)
    limit = _MAX_HARMLESS if kind.severity is Severity.GOOD_TO_KNOW else None
    found = [
        (split, index, fault.detail)
        for split in splits
        for index, marks in sorted(split.marks.items())
        for fault in marks.faults
        if fault.problem == problem
    ]
    if not found:
        return
    cases = tuple(Case((place_of(split, index),), detail) for split, index, detail in found[:limit])
    quarantined: tuple[Problem, ...] = ()
    if problem in _UNUSABLE:
        quarantined = tuple(
            Problem(listed_path(case.places[0], splits), case.places[0].split, problem, case.detail) for case in cases
        )
    yield Finding(problem, kind.severity, len(found), kind.unit, cases, quarantined)
