"""The page: every part with its sentence, picture and table, in one HTML file that opens without a network."""

import base64
from collections.abc import Mapping, Sequence

from vitrail.data.page import render_cards, render_page, shared_style, text
from vitrail.inspection.findings import Part
from vitrail.inspection.table import Cell, Table

_STYLE = """
section > p:first-of-type { margin-top: 0; }
.finding-line { font-weight: 600; }
.picture { display: block; width: 100%; height: auto; margin: 12px 0; padding: 10px; }
.picture { background: #fff; border-radius: 8px; }
.scroll { overflow-x: auto; }
.numbers { width: auto; margin-top: 10px; font-size: 13px; font-variant-numeric: tabular-nums; }
.numbers th { padding: 4px 18px 4px 0; text-align: right; font-weight: 400; color: var(--faint); white-space: nowrap; }
.numbers td { padding: 3px 18px 3px 0; text-align: right; white-space: nowrap; }
.numbers th:first-child, .numbers td:first-child, .numbers td.word { text-align: left; }
summary { cursor: pointer; color: var(--link); }
"""


def render_inspection(
    title: str, *, lead: str, facts: Mapping[str, str], parts: Sequence[Part], pictures: Mapping[str, str]
) -> str:
    """The whole page; `pictures` are SVG documents by the names of their parts, `facts` big words and what they are."""
    cards = render_cards((value, what) for what, value in facts.items())
    sections = "".join(_render_part(part, pictures.get(part.name)) for part in parts if not part.missing)
    body = f"""<header>
<p class="kicker">vitrail inspect</p>
<h1>{text(title)}</h1>
<p>{text(lead)}</p>
{cards}
</header>
<main>
{sections}{_render_missing(parts)}</main>"""
    return render_page(f"Inside {title}", body, style=shared_style() + _STYLE)


def _render_part(part: Part, picture: str | None) -> str:
    image = ""
    if picture is not None:
        content = base64.b64encode(picture.encode()).decode()
        image = f'<img class="picture" alt="{text(part.title)}" src="data:image/svg+xml;base64,{content}">'
    table = "" if part.table is None else _render_table(part.table, part.files)
    return (
        f'<section><h2>{text(part.title)}</h2><p class="finding-line">{text(part.finding)}</p>'
        f'<p class="what">{text(part.meaning)}</p>{image}{table}</section>\n'
    )


def _render_table(table: Table, files: Mapping[str, Table]) -> str:
    head = "".join(f"<th>{text(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in table.rows)
    names = ", ".join(f"<code>{text(name)}.csv</code>" for name in files)
    return (
        f"<details><summary>Numbers</summary>"
        f'<div class="scroll"><table class="numbers"><tr>{head}</tr>{rows}</table></div>'
        f'<p class="more">Also in {names} beside the page.</p></details>'
    )


def _render_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return f'<td class="word">{text(cell)}</td>'
    return f"<td>{'' if cell is None else f'{cell:#.4g}' if isinstance(cell, float) else cell}</td>"


def _render_missing(parts: Sequence[Part]) -> str:
    lines = "".join(
        f'<tr><td>{text(part.title)}</td><td class="detail">{text(part.missing)}</td></tr>'
        for part in parts
        if part.missing
    )
    return f"<section><h2>Not available</h2><table>{lines}</table></section>\n" if lines else ""
