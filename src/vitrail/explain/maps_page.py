"""The page of maps: it shows pictures that lie beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

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
    file = quote(entry.file)
    answers = ", ".join(f"{text(name)} {probability:.0%}" for name, probability in entry.answers)
    picture = f'<a href="{file}">{render_image(file)}</a>'
    name = entry.source.replace("\\", "/").rpartition("/")[2]
    return PageSection(name, render_figure(picture, f"{text(entry.source)}{answers and f': {answers}'}", is_wide=True))
