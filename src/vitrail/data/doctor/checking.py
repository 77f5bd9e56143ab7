"""Checking a data set by its name, and the files that a check leaves."""

import os
from collections.abc import Callable
from pathlib import Path

from vitrail.data.datasets import open_source
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
    progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """Look at every sample of a data set and say what must be fixed before training.

    With `out`, a folder, the report, findings.json and quarantine.csv are written there.
    """
    source = open_source(os.fspath(data), val_share=val_share, download=download)
    findings = check(source, num_workers=workers, progress=progress)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(findings, source, folder=folder)
    return findings
