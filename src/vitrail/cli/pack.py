"""Store of a fine-tuned run only what differs from its trunk, so that many tasks share one."""

import argparse
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.inference.packs import Packed

SUMMARY = "store only what differs from the trunk"

_KEYS = ("out", "trunk")
_NEARLY_ALL = 0.9  # a share of parameters from which on a pack saves nothing worth having


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail pack` takes."""
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="out=FOLDER (default: pack in the run's), trunk=PLACE (default: where the run's init= says)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the pack, then say what is in it."""
    settings = _read_settings(arguments.settings)

    from vitrail.inference.packs import pack_run

    packed = pack_run(arguments.run, out=settings.get("out"), trunk=settings.get("trunk"))
    print("\n".join(_show(packed)))
    return 0


def _read_settings(words: list[str]) -> dict[str, str]:
    settings = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not value:
            raise ValueError(f"{word!r} is no setting: write out=FOLDER or trunk=PLACE")
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_KEYS)}"
            raise ValueError(f"unknown key {key!r}; {hint}")
        settings[key] = value
    return settings


def _show(packed: "Packed") -> Iterator[str]:
    pack = packed.pack
    num_parameters = pack.num_stored + pack.num_shared
    yield (
        f"{packed.folder}: {pack.num_stored:,} of {num_parameters:,} parameters ({pack.stored_share:.1%}), "
        f"{packed.num_bytes / 1e6:.1f} MB; the whole model has {packed.num_model_bytes / 1e6:.1f} MB"
    )
    yield f"trunk: {pack.trunk_label}"
    if not pack.shared:
        yield "the pack holds the whole model and needs no trunk: train_only=attention makes one of about a third"
    elif pack.stored_share > _NEARLY_ALL:
        yield "nearly everything differs from the trunk: train_only=attention makes a pack of about a third"
