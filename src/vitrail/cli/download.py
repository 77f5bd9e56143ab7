"""Fetch published weights into the cache, for now or for a machine without a network."""

import argparse
import fnmatch
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUMMARY = "fetch published weights into the cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail download` takes."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="published weights, such as deit_tiny, cait_s24@384, deit3_base@384,in22k or timm/resnet50.a1_in1k; "
        "'cait_*' for all that match; hf://OWNER/NAME",
    )
    parser.add_argument("--list", action="store_true", help="list published weights (of NAME) and which are here")
    parser.add_argument("--json", action="store_true", help="print names and files as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Fetch one after the other, and say where each lies."""
    names = _expand(arguments.names or (["*"] if arguments.list else []))
    if not names:
        raise ValueError("which weights? Give names such as deit_tiny or 'cait_*'; --list shows what there is")

    from vitrail.weights.published_files import find_places

    places = {name: find_places(name) for name in names}  # what is wrong shows before the first long download
    found = {name: place.find() if arguments.list else place.fetch() for name, place in places.items()}
    if arguments.json:
        print(json.dumps({name: None if path is None else str(path) for name, path in found.items()}, indent=2))
    else:
        print("\n".join(_show(name, path) for name, path in found.items()))
    return 0


def _expand(words: "Sequence[str]") -> list[str]:
    """Names, and in place of a pattern all that match it."""
    from vitrail.models.published import PUBLISHED

    names: list[str] = []
    for word in words:
        if "*" not in word:
            names.append(word)
            continue
        found = [weights.text for weights in PUBLISHED if fnmatch.fnmatchcase(weights.text, word)]
        if not found:
            raise ValueError(f"no published weights match {word!r}: `vitrail download --list` shows what there is")
        names += found
    return list(dict.fromkeys(names))


def _show(name: str, path: "Path | None") -> str:
    return f"{name:<36}{_top1(name):<14}" + (
        "not here" if path is None else f"{path.stat().st_size / 1e6:,.1f} MB  {path}"
    )


def _top1(name: str) -> str:
    from vitrail.models.figures.published_weights import PUBLISHED_TOP1

    return f"{PUBLISHED_TOP1[name]} % top-1" if name in PUBLISHED_TOP1 else ""
