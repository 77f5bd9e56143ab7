"""Pages for people: one HTML file that opens anywhere without a network, in the look that all pages share."""

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from vitrail.data.stored import visible

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render_page(title: str, body: str, *, style: str, has_own_pictures: bool = True) -> str:
    """The whole page. With `has_own_pictures` they are all inside it, and a browser is told to fetch nothing."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n' if has_own_pictures else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def shared_style() -> str:
    """The look of every report: colours for light and dark, header, cards, sections and tables."""
    return files("vitrail.data").joinpath("page.css").read_text(encoding="utf-8")


def render_cards(cards: Iterable[tuple[str, str]]) -> str:
    """Big words, each with what it says below it."""
    shown = "".join(f'<div class="card"><b>{text(big)}</b><span>{text(what)}</span></div>' for big, what in cards)
    return f'<div class="cards">{shown}</div>'


def text(content: object) -> str:
    """Anything as text that is safe in HTML, with what would not show as escapes."""
    return escape(visible(str(content)))
