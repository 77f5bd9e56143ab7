"""Tables as CSV that a spreadsheet opens without taking a name for a formula."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

# How a cell begins that a spreadsheet would compute; also behind apostrophes, so that one more can be told from those.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf)", re.IGNORECASE)


class CsvWriter:
    """Writes rows of a table, with each cell guarded."""

    def __init__(self, file: TextIO | io.StringIO, *, lineterminator: str = "\n") -> None:
        self._writer = csv.writer(file, lineterminator=lineterminator)

    def write(self, rows: Iterable[Iterable[object]]) -> None:
        """Add the rows."""
        self._writer.writerows([guard_cell(cell) for cell in row] for row in rows)


def csv_text(rows: Iterable[Mapping[str, object]], *, columns: Sequence[str]) -> str:
    """Rows by the names of their columns below a heading; a cell that a row lacks, or None, is empty."""
    content = io.StringIO()
    CsvWriter(content).write([columns, *([row.get(column) for column in columns] for row in rows)])
    return content.getvalue()


def guard_cell(cell: object) -> object:
    """A cell as it is, or behind an apostrophe where it is text that a spreadsheet would compute; numbers are none."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def bare_cell(cell: str) -> str:
    """What a cell was before it was guarded."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
