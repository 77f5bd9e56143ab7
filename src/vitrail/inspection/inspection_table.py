"""Tables of numbers, for a page and for a file."""

import io
from collections.abc import Mapping
from dataclasses import dataclass

from vitrail.inspection.layers import Layer
from vitrail.storage import CsvWriter

Cell = str | int | float | None  # None: there is no such number


@dataclass(frozen=True)
class InspectionTable:
    """Rows below the names of their columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def as_csv(self) -> str:
        """The table as CSV: numbers with six digits, an empty cell where there is none."""
        text = io.StringIO()
        rows = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in self.rows)
        CsvWriter(text).write([self.columns, *rows])
        return text.getvalue()


def tabulate(columns: Mapping[str, Mapping[Layer, float | None]]) -> InspectionTable:
    """A row for each block, from columns of numbers by layer; layers of one block stand in the same row."""
    by_block = {name: {layer.label: value for layer, value in column.items()} for name, column in columns.items()}
    blocks = dict.fromkeys(block for column in by_block.values() for block in column)
    rows = tuple((block, *(column.get(block) for column in by_block.values())) for block in blocks)
    return InspectionTable(("layer", *columns), rows)
