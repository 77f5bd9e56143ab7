"""Checked readers of what a user, a run or another program has left: a mistake is one line that names the file.

Every text of a file is parsed here, and what is made of its content is made inside `content_of`: whatever is wrong with
it, no reader shows a traceback, takes more memory than the file deserves or recurses without an end.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

# What Python raises of values that are not what they should be; a MemoryError of numbers that are far too large.
WRONG_CONTENT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
MAX_DEPTH = 50  # of lists and mappings in each other; recipes and models have up to five
_CONTAINERS = (dict, list, tuple)
_OF_A_DEVICE = "OutOfMemoryError"  # of torch, which is no file's fault
_MAX_REASON = 300  # characters
_MAX_XML = 10_000_000  # characters
_MAX_ALIASED = 100_000  # lists and mappings of a YAML text, counted again wherever an alias repeats them


@contextlib.contextmanager
def content_of(label: object, *, remedy: str) -> Iterator[None]:
    """Blame what goes wrong inside the block on the content of a file: a ValueError of one line that begins with it.

    A ValueError that names the file already is left as it is.
    """
    try:
        yield
    except WRONG_CONTENT as error:
        if (isinstance(error, ValueError) and str(label) in str(error)) or type(error).__name__ == _OF_A_DEVICE:
            raise
        reason = " ".join(str(error).split())[:_MAX_REASON]
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__} {reason}".strip()
        raise ValueError(f"{label} holds wrong values ({reason}): {remedy}") from error


def read_text(path: Path, *, remedy: str, label: str | None = None) -> str:
    """The text of a file in UTF-8, with a mark of its encoding or without."""
    try:
        if path.exists() and not path.is_file():
            reason = "it is no regular file"
        else:
            return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not in UTF-8"
    raise ValueError(f"{label or path} can't be read ({reason}): {remedy}")


def read_json(path: Path, *, remedy: str, label: str | None = None) -> Any:
    """The content of a JSON file.

    `remedy` says what to do where it is wrong, `label` what to call it where its path says little.
    """
    text = read_text(path, remedy=remedy, label=label)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{label or path} can't be read ({error}): {remedy}") from None


def read_json_object(path: Path, *, remedy: str, label: str | None = None) -> dict[str, Any]:
    """The content of a JSON file that must be an object, `{"key": value, ...}`."""
    content = read_json(path, remedy=remedy, label=label)
    if not isinstance(content, dict):
        kind = "null" if content is None else f"a {type(content).__name__}"
        raise ValueError(f"{label or path} must hold an object with keys and values, not {kind}: {remedy}")
    return content


def read_json_lines(path: Path) -> list[Any]:
    """What the whole lines of a file hold: the last one of a process that was killed may not be whole."""
    contents = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            contents.append(parse_json(line))
    return contents


def parse_json(text: str | bytes) -> Any:
    """The content of a JSON text; a ValueError that says what is wrong with it and names no file."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    check_nesting(content)
    return content


def read_xml(path: Path, *, remedy: str) -> ElementTree.Element:
    """The root of an XML file; one that declares anything is refused, since entities unfold to any size."""
    text = read_text(path, remedy=remedy)
    if len(text) > _MAX_XML:
        raise ValueError(f"{path} can't be read (it has more than {_MAX_XML:,} characters): {remedy}")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError(f"{path} can't be read (it declares a document type, which is not allowed): {remedy}")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"{path} can't be read (it is not XML: {error}): {remedy}") from None


def parse_yaml(text: str, *, label: str, loader: type[yaml.SafeLoader]) -> Any:
    """The content of a YAML text, which a safe loader reads without running code."""
    try:
        content = yaml.load(text, Loader=loader)
        check_nesting(content, limit=_MAX_ALIASED)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{label} is not valid YAML{where}: {problem}") from None
    except RecursionError:
        raise ValueError(f"{label} can't be read: its lists are nested too deeply") from None
    except WRONG_CONTENT as error:  # of a date that there is not, of a number of too many digits
        raise ValueError(f"{label} can't be read: {' '.join(str(error).split())}") from None
    return content


def check_nesting(content: Any, *, limit: int | None = None) -> None:
    """Refuse lists and mappings that are nested too deeply, or that unfold to more than `limit` of them."""
    found, count = [(content, 0)] if isinstance(content, _CONTAINERS) else [], 0
    while found:
        outer, depth = found.pop()
        count += 1
        if depth >= MAX_DEPTH:
            raise ValueError("its lists are nested too deeply")
        if limit is not None and count > limit:
            raise ValueError(f"it unfolds to more than {limit:,} lists")
        inner = outer.values() if isinstance(outer, dict) else outer
        if any(
            issubclass(kind, _CONTAINERS) for kind in set(map(type, inner))
        ):  # of a million numbers it is quickly told
            found.extend((value, depth + 1) for value in inner if isinstance(value, _CONTAINERS))
