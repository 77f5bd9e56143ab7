"""Measure a trained model on data: a classifier's accuracy, calibration and confusions, or what its task measures."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vitrail.cli import compare
from vitrail.cli.together import refuse_several
from vitrail.inference.passes import KEYS, MODEL_HELP, split_words

if TYPE_CHECKING:
    from vitrail.tasks.results import Evaluation

SUMMARY = "measure a trained model on data"

_NUM_NAMED = 10  # images that could not be read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail evaluate` takes."""
    parser.add_argument(
        "model",
        metavar="RUN|MODEL",
        help=f"{MODEL_HELP}; several of them with --compare",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help=f"any of {', '.join(KEYS)}; without data=SPEC it is measured on the run's own val",
    )
    parser.add_argument("--compare", action="store_true", help="how often several models disagree, and with the labels")
    parser.add_argument("--tokens", action="store_true", help="how alike class and distillation token are, by layer")
    parser.add_argument("--sizes", metavar="160,224,288", help="image sizes to compare")
    parser.add_argument("--crop-ratios", metavar="0.875,1.0", help="crop ratios to compare")
    parser.add_argument("--scales", metavar="0.75,1,1.25", help="scales at which a segmentation model sees each image")
    parser.add_argument("--flip", action="store_true", help="let a segmentation model see images mirrored too")
    parser.add_argument("--window", type=int, metavar="512", help="side of windows that slide over images to segment")
    parser.add_argument(
        "--short-side", type=int, metavar="512", help="short side that images to segment are resized to"
    )
    parser.add_argument("--beam", type=int, help="translations that the search goes on with; 1: greedy")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--json", action="store_true", help="print everything as JSON: all classes, all confusions")
    kinds.add_argument("--csv", action="store_true", help="print counts, precision, recall and F1 by class as CSV")


def run(arguments: argparse.Namespace) -> int:
    """Measure, then print."""
    sources, settings = split_words([arguments.model, *arguments.settings])
    if arguments.compare:
        for option in ("tokens", "sizes", "crop_ratios", "scales", "flip", "window", "short_side", "beam", "csv"):
            if getattr(arguments, option):
                raise ValueError(f"--{option.replace('_', '-')} is for one model: leave it or --compare out")
        refuse_several(arguments.world, "--compare")
        return compare.run(sources, settings, as_json=arguments.json)
    source = _only(sources)
    sizes = _numbers(arguments.sizes, "--sizes", int)
    ratios = _numbers(arguments.crop_ratios, "--crop-ratios", float)

    from vitrail.inference.evaluating import evaluate

    found = evaluate(
        source,
        tokens=arguments.tokens,
        sizes=sizes,
        crop_ratios=ratios,
        scales=_numbers(arguments.scales, "--scales", float),
        flip=arguments.flip,
        window=arguments.window,
        short_side=arguments.short_side,
        beam=arguments.beam,
        world=arguments.world,
        **settings,
    )
    for problem in found.unread[:_NUM_NAMED]:
        print(f"left out: {problem.path} {problem.detail}", file=sys.stderr)
    if arguments.json:
        import json

        print(json.dumps(dict(found.record), indent=2))
    elif arguments.csv:
        print(_as_csv(found), end="")
    else:
        print(found.text)
    return 0


def _as_csv(found: "Evaluation") -> str:
    from vitrail.storage import csv_text

    if not found.table:
        raise ValueError("a model of this task is not measured by class: leave --csv out, or take --json")
    return csv_text(found.table, columns=list(found.table[0]))


def _only(sources: list[str]) -> str:
    if not sources:
        raise ValueError(
            "which model? Give a folder of a run, a model or a pack, a name of `vitrail models`, or hf://OWNER/NAME"
        )
    if len(sources) > 1:
        raise ValueError(
            f"{sources[1]!r} is no setting: write key=value; several models are compared with --compare A B data=SPEC"
        )
    return sources[0]


def _numbers(text: str | None, option: str, kind: Callable[[str], Any]) -> list[Any]:
    """Numbers between commas."""
    try:
        numbers = [kind(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        numbers = []
    if text is not None and (not numbers or min(numbers) <= 0):
        raise ValueError(f"{option} takes positive numbers with commas between them, not {text[:60]!r}")
    return numbers
