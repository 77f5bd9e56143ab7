"""What the report of a run of translation shows: its best and worst sentences, and how they were scored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.pages.frame import PageSection
from vitrail.pages.tables import render_table
from vitrail.pages.words import text
from vitrail.storage import read_json_object
from vitrail.tasks.contract import RunReader
from vitrail.tasks.translate.evaluator import TRANSLATIONS

_NUM_SHOWN = 8
_COLUMNS = ("source", "reference", "translation", "chrF")


def sentence_sections(run: RunReader) -> Iterator[PageSection]:
    """Tables of the sentences of val that were translated best and worst, by chrF."""
    content: dict[str, Any] = run.read(TRANSLATIONS, _read, {})
    rows = [row for row in content.get("sentences", ()) if isinstance(row, list) and len(row) == len(_COLUMNS)]
    if not rows:
        return
    ranked = sorted(rows, key=lambda row: -float(row[3]))
    signatures = content.get("signatures", {})
    said = "; ".join(f"{name}: {signature}" for name, signature in signatures.items())
    body = f"<p>Beam {text(str(content.get('beam', '?')))}. {text(said)}</p>"
    body += "<h3>Best</h3>" + _table(ranked[:_NUM_SHOWN])
    body += "<h3>Worst</h3>" + _table(ranked[: -_NUM_SHOWN - 1 : -1])
    yield PageSection("Best and worst sentences of val", body, anchor="sentences")


def _table(rows: list[list[Any]]) -> str:
    return render_table(([*row[:3], round(float(row[3]), 1)] for row in rows), columns=_COLUMNS)


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path, remedy="the report goes without it")
