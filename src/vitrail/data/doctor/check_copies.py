"""Findings about pictures that occur several times: in one split, in several, with different labels."""

from collections.abc import Iterator, Sequence, Set

import numpy as np

from vitrail.data.doctor.duplicates import group_alike, group_equal
from vitrail.data.doctor.examine import Examination, ExaminedSplit
from vitrail.data.doctor.findings import Case, Finding, Place
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.doctor.places import listed_path, place_of
from vitrail.data.quarantine import Problem


def check_copies(examination: Examination) -> Iterator[Finding]:
    """Findings about copies and look-alikes; the splits are in the order train, val, test, others."""
    splits, records = examination.splits, examination.records
    # Record `number` is that of sample `indices[number]` of split `owners[number]`.
    owners = np.repeat(np.arange(len(splits)), [len(split.records) for split in splits])
    indices = np.concatenate([np.arange(len(split.records)) for split in splits])
    whole = np.flatnonzero(records["is_whole"])

    def places_of(group: np.ndarray) -> list[Place]:
        return [place_of(splits[owners[number]], int(indices[number])) for number in group]

    equal = [whole[group] for group in group_equal(records["digest"][whole])]
    copies = [_describe(places_of(group), word="copies") for group in equal]
    yield from _report_copies(copies, splits)

    is_later_copy = np.zeros(len(records), dtype=bool)
    for group in equal:
        is_later_copy[group[1:]] = True
    telling = np.flatnonzero(records["is_whole"] & ~records["is_blank"] & ~is_later_copy)
    alike = group_alike(records["look"], thumbnails=records["thumbnail"], among=telling)
    yield from _report_look_alikes([_describe(places_of(group), word="look-alikes") for group in alike])


def _report_copies(cases: Sequence[Case], splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    order = [split.split for split in splits]
    leaks = [case for case in cases if _num_splits(case) > 1]
    conflicts = [case for case in cases if _num_labels(case) > 1]
    repeats = [case for case in cases if _num_splits(case) == 1 and _num_labels(case) == 1]
    leaking = []
    for case in leaks:
        last = max(case.places, key=lambda place: order.index(place.split))
        # The copy in the last split is the one that is measured with: it stays, the earlier ones go.
        detail = f"same picture as {listed_path(last, splits)} in {last.split}"
        leaking += [
            Problem(listed_path(place, splits), place.split, "leakage", detail)
            for place in _without_kept(case.places, kept={last.split})
        ]
    # Here too nothing that is measured with goes.
    conflicting = [
        Problem(listed_path(place, splits), place.split, "conflicting labels", f"here {place.label}; {case.detail}")
        for case in conflicts
        for place in _without_kept(case.places, kept={*order} - {"train"})
    ]
    yield from _find("leakage", leaks, quarantined=leaking)
    yield from _find("conflicting labels", conflicts, quarantined=conflicting)
    yield from _find("duplicate", repeats)


def _without_kept(places: Sequence[Place], *, kept: Set[str]) -> list[Place]:
    """The places outside those splits. A file that two splits list cannot go from one alone: a listing names files."""
    paths = {place.path for place in places if place.split in kept}
    return [place for place in places if place.split not in kept and place.path not in paths]


def _report_look_alikes(cases: Sequence[Case]) -> Iterator[Finding]:
    yield from _find("near leakage", [case for case in cases if _num_splits(case) > 1])
    yield from _find("near duplicate", [case for case in cases if _num_splits(case) == 1])


def _find(problem: str, cases: Sequence[Case], *, quarantined: Sequence[Problem] = ()) -> Iterator[Finding]:
    if cases:
        kind = kind_of(problem)
        yield Finding(problem, kind.severity, len(cases), kind.unit, tuple(cases), tuple(quarantined))


def _num_splits(case: Case) -> int:
    return len({place.split for place in case.places})


def _num_labels(case: Case) -> int:
    return len({place.label for place in case.places})


def _describe(places: Sequence[Place], *, word: str) -> Case:
    splits = list(dict.fromkeys(place.split for place in places))
    labels = list(dict.fromkeys(place.label for place in places))
    detail = f"{len(places)} {word} in {' and '.join(splits)}"
    if len(labels) > 1:
        detail += f", labelled {' and '.join(labels)}"
    return Case(tuple(places), detail)
