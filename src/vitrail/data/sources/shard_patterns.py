"""The tar files that a pattern names: `train-{000..127}.tar`, `{a,b}-*.tar`, `{split}-*.tar`."""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitrail.data.splits import canonical

INDEX_SUFFIX = ".index"
SPLIT = "{split}"
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_RANGE = 1_000_000


def find_shards(pattern: str) -> dict[str, list[Path]]:
    """The files of every split; everything is `train` where the pattern has no `{split}`.

    Braces must be matched by every file they stand for; `*`, `?` and `[...]` by at least one.
    """
    pattern = str(Path(pattern).expanduser())
    if SPLIT not in pattern:
        return {"train": _expand(pattern, pattern)}
    found: dict[str, list[Path]] = {}
    for name in _split_names(pattern):
        found.setdefault(canonical(name), []).extend(_expand(pattern.replace(SPLIT, name), pattern))
    if not found:
        raise ValueError(f"no files match {pattern}: {{split}} stands for train, val, test ...")
    return found


def _split_names(pattern: str) -> list[str]:
    """What `{split}` stands for in the files that there are."""
    before, _, after = pattern.partition(SPLIT)
    wide = _BRACES.sub("*", before) + "*" + _BRACES.sub("*", after.replace(SPLIT, "*"))
    return match_splits(pattern, _glob(wide))


def match_splits(pattern: str, names: Iterable[str]) -> list[str]:
    """What `{split}` stands for in those names."""
    before, _, after = pattern.partition(SPLIT)
    wide = [_BRACES.sub("*", part) for part in (before, after.replace(SPLIT, "*"))]
    expression = re.compile(f"{_as_expression(wide[0])}([^/]+?){_as_expression(wide[1])}", re.DOTALL)
    return sorted({match[1] for match in map(expression.fullmatch, names) if match})


def _as_expression(pattern: str) -> str:
    """A regular expression for a pattern with wildcards."""
    parts = re.split(r"(\*|\?|\[[^]]+\])", pattern)
    wild = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        wild.get(part) or (part.replace("[!", "[^") if place % 2 else re.escape(part))
        for place, part in enumerate(parts)
    )


def _expand(pattern: str, original: str) -> list[Path]:
    """The files of one split."""
    paths: list[Path] = []
    missing: list[str] = []
    num_names = 0
    for name in expand_braces(pattern, original):
        num_names += 1
        matches = _glob(name) if glob.has_magic(name) else [name] * os.path.isfile(name)
        paths += map(Path, matches)
        if not matches:
            missing.append(name)
    if missing and num_names == 1:
        raise ValueError(f"no file matches {missing[0]}{_why(missing[0])}")
    if missing:
        raise ValueError(
            f"{len(missing)} of the {num_names} files of {original} are missing, "
            f"the first is {missing[0]}{_why(missing[0])}"
        )
    return list(dict.fromkeys(paths))


def expand_braces(pattern: str, original: str) -> Iterator[str]:
    """The names that a pattern with braces stands for, in order; `original` is what a person wrote."""
    pieces = _BRACES.split(pattern)  # text and the contents of braces in turn
    choices = [_choices(piece, original) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _why(name: str) -> str:
    """What else is known about a name that no file has."""
    if os.path.isdir(name):
        return f": it is a folder, so write {name}/*.tar"
    try:
        os.stat(name)
    except PermissionError as error:
        return f": {error.strerror}"
    except (OSError, ValueError):
        pass
    return ""


def _choices(text: str, original: str) -> list[str]:
    """What a pair of braces stands for."""
    if match := _RANGE.fullmatch(text):
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + _MAX_RANGE:
            raise ValueError(f"{original}: {{{text}}} must count upwards, and not beyond {_MAX_RANGE} files")
        return [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    if "," in text:
        return text.split(",")
    raise ValueError(f"{original}: {{{text}}} is not {{split}}, a range such as {{000..127}} or a list such as {{a,b}}")


def _glob(pattern: str) -> list[str]:
    return sorted(path for path in glob.glob(pattern) if not path.endswith(INDEX_SUFFIX) and os.path.isfile(path))
