"""Words and numbers for people: cut to length, counted."""


def shorten(name: str, length: int) -> str:
    """A name cut to a length in its middle: names that begin alike often end differently."""
    if len(name) <= length:
        return name
    end = length // 3
    return f"{name[: length - 1 - end].rstrip()}…{name[-end:].lstrip()}"


def count(number: int, noun: str) -> str:
    """Such as "1 image" and "1,200 images"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float, *, digits: int = 0) -> str:
    """Such as "12 %"."""
    return f"{100 * share:.{digits}f} %"
