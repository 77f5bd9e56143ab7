"""The lines of metrics.jsonl as one table, for spreadsheets and data frames."""

from pathlib import Path

from vitrail.settings.text import dotted
from vitrail.storage import csv_text, write_text
from vitrail.training.runs.report.run_record import RunRecord, stage_number


def write_metrics_table(run: RunRecord) -> Path:
    """Write `metrics.csv` into the folder of a run: steps and evaluations in their order, and the union of their keys.

    A cell is empty where a line has no such key; what a line has below a key is named `key.name`.
    """
    lines = sorted((*run.train, *run.evaluations), key=lambda line: (stage_number(line), line["step"]))
    rows = [dict(dotted(line)) for line in lines]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path = run.folder / "metrics.csv"
    write_text(path, csv_text(rows, columns=columns), errors="backslashreplace")
    return path
