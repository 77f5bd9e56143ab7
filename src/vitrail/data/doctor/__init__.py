"""The data doctor: looks at every sample of a source and says what must be fixed before training."""

import os
from collections.abc import Callable, Sequence

import numpy as np

from vitrail.data.contract import Source
from vitrail.data.dense.dense_sources import DenseSource
from vitrail.data.doctor.check_copies import check_copies
from vitrail.data.doctor.check_labels import (
    check_labels,
    check_unlabelled,
    count_classes,
    note_splits,
    report_notes,
)
from vitrail.data.doctor.check_marks import check_marks, count_marks, find_look
from vitrail.data.doctor.check_samples import check_samples
from vitrail.data.doctor.examine import ExaminedSplit, examine_splits
from vitrail.data.doctor.findings import Finding, Findings, Severity, SplitSummary
from vitrail.data.doctor.kinds import KINDS
from vitrail.data.doctor.places import find_files

__all__ = ["check"]


def check(source: Source, *, num_workers: int = 0, progress: Callable[[int, int], None] | None = None) -> Findings:
    """Read and measure every sample of every split, in `num_workers` processes beside this one or in this one alone.

    `progress` is called with the number of samples that are done and that of all. What is wrong with the data is
    among the findings; nothing about it raises.
    """
    datasets = [source.open(split) for split in source.splits]
    look = find_look(source)
    examination = examine_splits(datasets, num_workers=num_workers, progress=progress, look=look)
    splits = examination.splits
    if isinstance(source, DenseSource):
        classes = source.classes
        counts = [count_marks(split, len(classes)) for split in splits]
        found = [*report_notes([*source.notes, *note_splits(datasets)]), *check_marks(splits, classes, counts[0])]
    elif not any(dataset.levels for dataset in datasets):
        classes = ()
        counts = [np.zeros(0, dtype=np.int64) for _ in splits]
        found = [*check_unlabelled(datasets, source.notes)]
    else:
        classes = datasets[0].level().classes if datasets else ()
        counts = [count_classes(split.dataset.level()) for split in splits]
        found = [*check_labels(datasets, source.notes)]
    found += [*check_samples(splits), *check_copies(examination)]
    return Findings(
        name=source.name,
        root=_find_root(splits),
        classes=classes,
        splits=tuple(_summarise(split, own) for split, own in zip(splits, counts, strict=True)),
        findings=tuple(sorted(found, key=_rank)),
    )


def _summarise(examined: ExaminedSplit, class_counts: np.ndarray) -> SplitSummary:
    records = examined.records
    widths, heights = (records[side][records["is_whole"]] for side in ("width", "height"))
    return SplitSummary(
        split=examined.split,
        num_images=len(records),
        class_counts=tuple(class_counts.tolist()),
        sizes=np.stack([widths, heights], axis=1).astype(np.int64),
    )


def _find_root(splits: Sequence[ExaminedSplit]) -> str:
    files = [find_files(split.dataset) for split in splits]
    roots = {os.path.abspath(held.root) for held in files if held is not None}
    return roots.pop() if len(roots) == 1 else ""


def _rank(finding: Finding) -> tuple[int, int]:
    known = list(KINDS)
    place = known.index(finding.problem) if finding.problem in KINDS else len(known)
    return list(Severity).index(finding.severity), place
