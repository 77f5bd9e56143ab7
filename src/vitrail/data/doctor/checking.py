"""Checking a data set by its name, and the files that a check leaves."""

import os
from collections.abc import Callable
from pathlib import Path

from vitrail.data.contract import Labels, Source
from vitrail.data.datasets import open_source
from vitrail.data.dense.dense_sources import DenseOpening
from vitrail.data.dense.opening import MarkedBy, guess_marks, open_detection_source, open_segmentation_source
from vitrail.data.doctor import check
from vitrail.data.doctor.check_files import write_files
from vitrail.data.doctor.findings import Findings


def check_data(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    val_share: float = 0.1,
    workers: int = 0,
    download: bool = False,
    labels: MarkedBy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """Look at every sample of a data set and say what must be fixed before training.

    `labels` says whether it has "classes" of whole images, "masks", "boxes" or "none", where its name or folder does
    not. Images without labels are checked as what a pre-training learns from.
    With `out`, a folder, the report, findings.json and quarantine.csv are written there.
    """
    source = open_to_check(os.fspath(data), labels=labels, val_share=val_share, download=download)
    findings = check(source, num_workers=workers, progress=progress)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(findings, source, folder=folder)
    return findings


def open_to_check(spec: str, *, labels: MarkedBy | None, val_share: float, download: bool) -> Source:
    """The data of that name or place; faults of manifests and annotations are notes of it."""
    needed: Labels = "optional" if labels is None else "required"
    labels = guess_marks(spec) if labels is None else labels
    if labels == "classes":
        source = open_source(spec, val_share=val_share, download=download, labels=needed, faults="noted")
        labels = "classes" if all(source.open(split).levels for split in source.splits) else "none"
        if labels == "classes":
            return source
    if labels == "none":  # no val is set aside: what is copied there does no harm where no labels are measured with
        return open_source(spec, val_share=0.0, download=download, labels="ignored", faults="noted")
    opening = DenseOpening(val_share=val_share, faults="noted")
    return open_segmentation_source(spec, opening) if labels == "masks" else open_detection_source(spec, opening)
