"""The page of maps: it shows pictures that lie beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from vitrail.pages.bars import BarRow, draw_bars
from vitrail.pages.frame import Page, PageSection, render_page
from vitrail.pages.pictures import render_figure, render_image
from vitrail.pages.words import text


class MapPicture(NamedTuple):
    """One picture of the page."""

    file: str  # in the page's folder
    source: str  # the image it was made of
    answers: Sequence[tuple[str, float]]  # classes and their probabilities


def write_maps_page(folder: Path, *, title: str, notes: Sequence[str], entries: Sequence[MapPicture]) -> Path:
    """Write `index.html`; the notes below the title say what the maps mean."""
    page = Page(
        title=title,
        kicker="vitrail explain",
        lead=notes,
        sections=list(map(_entry_section, entries)),
        has_own_pictures=False,
    )
    path = folder / "index.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path


def _entry_section(entry: MapPicture) -> PageSection:
    """The picture, and the model's answers as bars."""
    file = quote(entry.file)
    picture = render_figure(f'<a href="{file}">{render_image(file)}</a>', text(entry.source), is_wide=True)
    name = entry.source.replace("\\", "/").rpartition("/")[2]
    if not entry.answers:
        return PageSection(name, picture)
    best, probability = entry.answers[0]
    rows = [BarRow(answer, [share], f"{share:.1%}") for answer, share in entry.answers]
    bars = f"<h3>Answers</h3>{draw_bars(rows, most=1.0, noun='answers')}"
    return PageSection(name, picture + bars, aside=f'<span class="pill know">{text(best)} {probability:.0%}</span>')
