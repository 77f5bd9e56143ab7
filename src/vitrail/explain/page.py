"""A page that shows pictures lying beside it, and opens without a network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

_STYLE = """
:root { color-scheme: light dark; }
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
    paragraphs = "".join(f"<p>{escape(note)}</p>" for note in notes)
    figures = "\n".join(_render(entry) for entry in entries)
    path = folder / "index.html"
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n{paragraphs}\n{figures}\n</body></html>\n",
        encoding="utf-8",
    )
    return path


def _render(entry: Entry) -> str:
    answers = ", ".join(f"{escape(name)} {probability:.0%}" for name, probability in entry.answers)
    caption = escape(entry.source) + (f": {answers}" if answers else "")
    file = quote(entry.file)
    picture = f'<a href="{file}"><img src="{file}" loading="lazy" alt=""></a>'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
