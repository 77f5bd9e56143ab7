"""A page that shows pictures lying beside it, and opens without a network."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from vitrail.data.page import render_page, text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
figure { margin: 0 0 2.5rem; }
img { max-width: 100%; height: auto; background: #fff; }
figcaption { opacity: 0.75; overflow-wrap: anywhere; }
"""


class Entry(NamedTuple):
    """One picture of the page."""

    file: str  # in the page's folder
    source: str  # the image it was made of
    answers: Sequence[tuple[str, float]]  # classes and their probabilities


def write_page(folder: Path, *, title: str, notes: Sequence[str], entries: Sequence[Entry]) -> Path:
    """Write `index.html`; the notes below the title say what the maps mean."""
    paragraphs = "".join(f"<p>{text(note)}</p>" for note in notes)
    figures = "\n".join(_render(entry) for entry in entries)
    path = folder / "index.html"
    body = f"<h1>{text(title)}</h1>\n{paragraphs}\n{figures}"
    path.write_text(render_page(title, body, style=_STYLE, has_own_pictures=False), encoding="utf-8")
    return path


def _render(entry: Entry) -> str:
    answers = ", ".join(f"{text(name)} {probability:.0%}" for name, probability in entry.answers)
    caption = text(entry.source) + (f": {answers}" if answers else "")
    file = quote(entry.file)
    picture = f'<a href="{file}"><img src="{file}" loading="lazy" alt=""></a>'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
