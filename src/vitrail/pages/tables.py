"""Tables of a page, as HTML."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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


class SortedColumn(NamedTuple):
    """A column that a table can be sorted by."""

    name: str
    is_falling: bool = False  # whether the greatest value comes first
    digits: int = 0  # of its numbers behind the point

    def render(self, cell: object) -> str:
        """A cell of the column."""
        return (
            f'<td class="number">{cell:,.{self.digits}f}</td>' if isinstance(cell, (int, float)) else _render_cell(cell)
        )


def render_sortable_table(
    rows: Sequence[Sequence[object]], *, columns: Sequence[SortedColumn], name: str, sorted_by: int = 0
) -> str:
    """A table that is sorted by the heading a reader chooses, without a script; `name` is its own on the page.

    Up to eight columns, the first of text and the others of numbers; a cell of None comes last.
    """
    assert len(columns) <= 8, "the stylesheet knows eight"
    ranks = [_rank([row[place] for row in rows], is_falling=column.is_falling) for place, column in enumerate(columns)]
    inputs = "".join(
        f'<input type="radio" name="{text(name)}" id="{text(name)}-{place}"{" checked" if place == sorted_by else ""}>'
        for place in range(len(columns))
    )
    head = "".join(
        f'<th><label for="{text(name)}-{place}">{text(column.name)}</label></th>'
        for place, column in enumerate(columns)
    )
    body = "".join(
        f'<tr style="{";".join(f"--by-{place}:{rank[number]}" for place, rank in enumerate(ranks))}">'
        f"{''.join(column.render(cell) for column, cell in zip(columns, row, strict=True))}</tr>"
        for number, row in enumerate(rows)
    )
    return (
        f'<div class="sortable" style="--numbers:{len(columns) - 1}">{inputs}'
        f'<div class="scroll"><table><tbody><tr>{head}</tr>{body}</tbody></table></div></div>'
    )


def _rank(values: Sequence[Any], *, is_falling: bool) -> list[int]:
    """The place of each value when they are sorted, from 1."""
    known = sorted((place for place, value in enumerate(values) if value is not None), key=values.__getitem__)
    if is_falling:
        known.reverse()
    ranks = [len(values)] * len(values)
    for rank, place in enumerate(known, start=1):
        ranks[place] = rank
    return ranks


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
