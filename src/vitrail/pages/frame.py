"""The frame of every page: one HTML file that opens anywhere without a network, in one look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from vitrail.pages.words import text

Tone = Literal["must", "look", "know", "good"]  # a colour that says how grave something is

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class PageSection:
    """A part of a page below a title of its own."""

    title: str
    body: str  # HTML
    anchor: str = ""  # name for links to the section; "" for none
    aside: str = ""  # HTML beside the title
    tone: Tone | None = None  # colour of its edge
    is_narrow: bool = False  # stands beside a neighbour that is narrow too, where there is room


@dataclass(frozen=True)
class Verdict:
    """The one line that a reader in a hurry wants."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Page:
    """All that stands on a page, from the top to the bottom."""

    title: str
    kicker: str  # small line above the title: the command that writes the page
    sections: Sequence[PageSection]
    window_title: str = ""  # name of the browser's tab; the title unless given
    verdict: Verdict | None = None
    lead: Sequence[str] = ()  # paragraphs below the title
    cards: Sequence[tuple[str, str]] = ()  # big words, each with what it says
    has_own_pictures: bool = True  # they are all inside the file, and a browser is told to fetch nothing


def render_page(page: Page) -> str:
    """A whole page as HTML."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n' if page.has_own_pictures else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(page.window_title or page.title)}</title>
<style>{read_style()}</style>
</head>
<body>
<header>
<p class="kicker">{text(page.kicker)}</p>
<h1>{text(page.title)}</h1>
{_render_head(page)}</header>
<main>
{"".join(map(_render_section, page.sections))}</main>
<footer>{_describe(page)}</footer>
</body>
</html>
"""


@cache
def read_style() -> str:
    """The stylesheet of all pages."""
    return files("vitrail.pages").joinpath("pages.css").read_text(encoding="utf-8")


def _render_head(page: Page) -> str:
    verdict = page.verdict
    shown = [f'<p class="verdict {verdict.tone}">{text(verdict.text)}</p>\n'] if verdict else []
    shown += [f'<p class="lead">{text(paragraph)}</p>\n' for paragraph in page.lead if paragraph]
    return "".join(shown) + (_render_cards(page.cards) if page.cards else "")


def _render_cards(cards: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f'<div class="card"><b>{text(big)}</b><span>{text(what)}</span></div>' for big, what in cards)
    return f'<div class="cards">{shown}</div>\n'


def _render_section(section: PageSection) -> str:
    anchor = f' id="{text(section.anchor)}"' if section.anchor else ""
    kinds = " ".join(
        filter(None, ["narrow" if section.is_narrow else "", f"edged {section.tone}" if section.tone else ""])
    )
    aside = f" {section.aside}" if section.aside else ""
    attributes = anchor + (f' class="{kinds}"' if kinds else "")
    return f"<section{attributes}>\n<h2>{text(section.title)}{aside}</h2>\n{section.body}\n</section>\n"


def _describe(page: Page) -> str:
    where = "in this file" if page.has_own_pictures else "in this file and the pictures beside it"
    return f"Written by vitrail. All of it is {where}: it opens without a network."
