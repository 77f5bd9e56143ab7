"""Tables of a page, as HTML."""

from collections.abc import Iterable, Sequence

from vitrail.pages.words import text


def render_table(rows: Iterable[Sequence[object]], *, columns: Sequence[str] = (), style: str = "") -> str:
    """Rows of cells below the names of their columns.

    A cell is escaped unless it is `Html`; None is an empty one, and numbers stand on the right. `style` is one of the
    stylesheet's: "facts" (a narrow first column of names), "lines" (a path and what is the matter with it),
    "numbers" (no wider than needed), "overview" (narrow columns and a wide last one) or "tally" (what and its counts).
    """
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in rows)
    name = f' class="{style}"' if style else ""
    return f'<div class="scroll"><table{name}>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def render_more(number: int, *, where: str = "") -> str:
    """A line that says how many others there are, and where; nothing if there are none."""
    place = f": see {where}" if where else ""
    return f'<p class="more">{text(f"and {number:,} more{place}")}</p>' if number > 0 else ""


def _render_cell(cell: object) -> str:
    if cell is None:
        return "<td></td>"
    if isinstance(cell, (int, float)):
        return f'<td class="number">{f"{cell:#.4g}" if isinstance(cell, float) else cell}</td>'
    return f"<td>{text(cell)}</td>"
