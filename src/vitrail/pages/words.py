"""Words and numbers for people: made visible, safe in HTML, cut to length, counted."""

from html import escape


class Html(str):
    """Text that is HTML already: it is not escaped again."""


def visible(content: str) -> str:
    """The text with all that a terminal or a page would not show as it is (controls, broken encodings) as escapes."""
    if content.isprintable():
        return content
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in content)


def text(content: object) -> Html:
    """Anything as text that is safe in HTML, with what would not show as escapes; HTML stays as it is."""
    return content if isinstance(content, Html) else Html(escape(visible(str(content))))


def count(number: int, noun: str) -> str:
    """A number with its noun, such as "1 image" and "1,200 images"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float, *, digits: int = 0) -> str:
    """A share such as "12 %"."""
    return f"{100 * share:.{digits}f} %"


def shorten(name: str, length: int) -> str:
    """A name cut to a length in its middle: names that begin alike often end differently."""
    if len(name) <= length:
        return name
    end = length // 3
    return f"{name[: length - 1 - end].rstrip()}…{name[-end:].lstrip()}"
