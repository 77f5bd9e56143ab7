"""Findings about classes: how many, how even, and what the source itself noted when it was opened."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.contract import Dataset, Level, Note
from vitrail.data.doctor.findings import Case, Finding, Place, Severity
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.doctor.places import find_files

_LARGE_RATIO = 10  # between the largest and the smallest class
_FEW_IMAGES = 5


def count_classes(level: Level) -> np.ndarray:
    """The number of images of each class: int64 [classes]."""
    if level.is_multiple:
        return level.labels.sum(axis=0, dtype=np.int64)
    return np.bincount(level.labels[level.labels >= 0], minlength=len(level.classes))


def check_labels(datasets: Sequence[Dataset], notes: Sequence[Note]) -> Iterator[Finding]:
    """Findings about classes; the first data set is the one that is trained on."""
    notes = [*notes, *note_splits(datasets)]
    if not any(note.problem == "single class" for note in notes):
        notes += _note_single_class(datasets)
    yield from report_notes(notes)
    if datasets and count_classes(datasets[0].level()).any():
        yield from _check_balance(datasets[0], is_missing_noted=any(note.problem == "class missing" for note in notes))


def check_unlabelled(datasets: Sequence[Dataset], notes: Sequence[Note]) -> Iterator[Finding]:
    """What there is to say of images without labels, from which a pre-training takes its own val."""
    num_images = sum(len(dataset) for dataset in datasets)
    told = [*notes, *_note_hidden_folders(datasets), *_note_empty_splits(datasets)]
    name = datasets[0].name if datasets else ""
    told.append(Note("no labels", name, f"{num_images:,} images without labels", is_serious=False))
    if num_images == 1:
        told.append(Note("single image", datasets[0].locate(0), "there is no other", is_serious=True))
    yield from report_notes(told)


def note_splits(datasets: Sequence[Dataset]) -> list[Note]:
    """Notes of hidden folders, and of splits that are missing or empty."""
    return [*_note_hidden_folders(datasets), *_note_missing_splits(datasets), *_note_empty_splits(datasets)]


def report_notes(notes: Sequence[Note]) -> Iterator[Finding]:
    """A finding for each kind of note."""
    for problem in dict.fromkeys(note.problem for note in notes):
        same = [note for note in notes if note.problem == problem]
        kind = kind_of(problem)
        severity = Severity.MUST_BE_FIXED if any(note.is_serious for note in same) else kind.severity
        cases = tuple(Case((Place(note.place),), note.detail) for note in same)
        yield Finding(problem, severity, len(cases), kind.unit, cases)


def _check_balance(dataset: Dataset, *, is_missing_noted: bool) -> Iterator[Finding]:
    counts = dict(zip(dataset.level().classes, count_classes(dataset.level()).tolist(), strict=True))
    ascending = sorted(counts, key=lambda name: counts[name])
    least, most = next(name for name in ascending if counts[name]), ascending[-1]
    if counts[most] >= _LARGE_RATIO * counts[least]:
        ratio = counts[most] / counts[least]
        detail = f"{ratio:.0f} times as many: {most} has {counts[most]:,}, {least} {counts[least]:,}"
        kind = kind_of("imbalance")
        yield Finding("imbalance", kind.severity, 1, kind.unit, (Case((Place(dataset.split),), detail),))
    few = [name for name in ascending if counts[name] < _FEW_IMAGES and (counts[name] or not is_missing_noted)]
    if few:
        kind = kind_of("few images")
        cases = tuple(
            Case((Place(name, dataset.split),), f"{counts[name]} image{'s' * (counts[name] != 1)}") for name in few
        )
        yield Finding("few images", kind.severity, len(cases), kind.unit, cases)


def _note_missing_splits(datasets: Sequence[Dataset]) -> list[Note]:
    """Note a split that a training run needs and the data lacks; sources make a val of train where they can."""
    present = " and ".join(dataset.split for dataset in datasets) or "none"
    return [
        Note("split missing", split, f"not there; the splits are: {present}", is_serious=True)
        for split in ("train", "val")
        if split not in (dataset.split for dataset in datasets)
    ]


def _note_empty_splits(datasets: Sequence[Dataset]) -> list[Note]:
    return [Note("empty split", data.split, "no images", is_serious=True) for data in datasets if not len(data)]


def _note_single_class(datasets: Sequence[Dataset]) -> list[Note]:
    if not datasets or datasets[0].level().is_multiple:
        return []
    classes = datasets[0].level().classes
    counts = np.sum([count_classes(dataset.level()) for dataset in datasets], axis=0)
    held = np.flatnonzero(counts)
    return [Note("single class", classes[held[0]], "all images are of it", is_serious=True)] if len(held) == 1 else []


def _note_hidden_folders(datasets: Sequence[Dataset]) -> list[Note]:
    """Note hidden folders beside the images, and beside the folders that lead to them."""
    folders: set[Path] = set()
    for dataset in datasets:
        files = find_files(dataset)
        if files is not None:
            root = Path(os.path.abspath(files.root))
            nearest = {root / folder for folder in {os.path.dirname(path) for path in files.paths}}
            above = {parent for folder in nearest for parent in folder.parents}
            folders |= nearest | {folder for folder in above if folder.is_relative_to(root)}
    return [
        Note("hidden folder", str(hidden), "passed over", is_serious=False)
        for folder in sorted(folders)
        for hidden in _list_hidden(folder)
    ]


def _list_hidden(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.name.startswith(".") and entry.is_dir())
    except OSError:  # its files are reported as unreadable
        return []
