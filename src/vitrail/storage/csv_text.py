"""Tables as CSV that a spreadsheet opens without taking a name for a formula."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute


def csv_text(rows: Iterable[Mapping[str, object]], *, columns: Sequence[str]) -> str:
    """Rows by the names of their columns below a heading; a cell that a row lacks, or None, is empty."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(map(guard_cell, columns))
    writer.writerows([guard_cell(row.get(column)) for column in columns] for row in rows)
    return content.getvalue()


def guard_cell(cell: object) -> object:
    """A cell as it is, or behind an apostrophe where it is text that a spreadsheet would compute."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULAS) else cell
