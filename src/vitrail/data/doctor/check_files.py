"""The three files that a check leaves: the page, the list for training to leave out, and everything for programs."""

import json
from io import StringIO
from pathlib import Path

from vitrail.data.contract import Source
from vitrail.data.doctor.check_page import render_check
from vitrail.data.doctor.findings import Case, Findings
from vitrail.data.quarantine import COLUMNS
from vitrail.storage import CsvWriter, write_text


def write_files(findings: Findings, source: Source, *, folder: Path) -> Path:
    """Write `report.html`, `quarantine.csv` and `findings.json` into the folder; gives the path of the report."""
    report = folder / "report.html"
    write_text(folder / "findings.json", as_json(findings), errors="surrogateescape")
    write_text(folder / "quarantine.csv", _as_listing(findings), errors="surrogateescape")
    write_text(report, render_check(findings, source), errors="surrogateescape")
    return report


def as_json(findings: Findings) -> str:
    """Everything that was found, for programs."""
    record = {
        "name": findings.name,
        "root": findings.root,
        "is_fit": findings.is_fit,
        "verdict": findings.verdict,
        "splits": [
            {
                "split": split.split,
                "images": split.num_images,
                "median_size": split.median_size,
                "classes": dict(zip(findings.classes, split.class_counts, strict=True)),
            }
            for split in findings.splits
        ],
        "findings": [
            {
                "problem": finding.problem,
                "severity": finding.severity.value,
                "count": finding.count,
                "unit": finding.unit,
                "cases": [_as_record(case) for case in finding.cases],
            }
            for finding in findings.findings
        ],
    }
    return json.dumps(record, indent=1)


def _as_record(case: Case) -> dict[str, object]:
    # Only what is known of a place: a class has no split, a broken file no size.
    places = [{key: value for key, value in vars(place).items() if value not in ("", None)} for place in case.places]
    return {"detail": case.detail, "places": places}


def _as_listing(findings: Findings) -> str:
    text = StringIO(newline="")
    CsvWriter(text, lineterminator="\r\n").write([COLUMNS, *findings.quarantined])
    return text.getvalue()
