"""The page of an inspection: every part with its sentence, charts and table."""

from collections.abc import Mapping, Sequence

from vitrail.inspection.inspection_parts import InspectionPart
from vitrail.inspection.inspection_table import InspectionTable
from vitrail.pages.charts import draw_charts
from vitrail.pages.frame import Page, PageSection, render_page
from vitrail.pages.tables import render_table
from vitrail.pages.words import text


def render_inspection(
    title: str, *, lead: Sequence[str], facts: Mapping[str, str], parts: Sequence[InspectionPart]
) -> str:
    """The whole page; `lead` are paragraphs below the title, `facts` big words by what they are."""
    sections = [_part_section(part) for part in parts if not part.missing]
    missing = [(part.title, part.missing) for part in parts if part.missing]
    if missing:
        sections.append(PageSection("Not available", render_table(missing, style="lines")))
    page = Page(
        title=title,
        kicker="vitrail inspect",
        window_title=f"Inside {title}",
        lead=lead,
        cards=[(value, what) for what, value in facts.items()],
        sections=sections,
    )
    return render_page(page)


def _part_section(part: InspectionPart) -> PageSection:
    charts = "".join(map(draw_charts, part.chart or ()))
    table = "" if part.table is None else _render_numbers(part.table, part.files)
    body = f'<p><b>{text(part.finding)}</b></p><p class="what">{text(part.meaning)}</p>{charts}{table}'
    is_narrow = all(len(row) == 1 for row in part.chart or ())
    return PageSection(part.title, body, anchor=part.name, is_narrow=is_narrow)


def _render_numbers(table: InspectionTable, files: Mapping[str, InspectionTable]) -> str:
    names = ", ".join(f"<code>{text(name)}.csv</code>" for name in files)
    return (
        f"<details><summary>Numbers</summary>{render_table(table.rows, columns=table.columns, style='numbers')}"
        f'<p class="more">Also in {names} beside the page.</p></details>'
    )
