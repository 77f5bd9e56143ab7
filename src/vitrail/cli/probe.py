"""Fit small classifiers to the embeddings of a fixed trunk, to see how well it transfers to other data."""

import argparse
import json
import sys

from vitrail.inference.passes import KEYS, MODEL_HELP, split_words

SUMMARY = "see how well a model's embeddings transfer to other data"

_KEYS = ("data", "method", "out", "cache", "features", *(key for key in KEYS if key != "data"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail probe` takes."""
    parser.add_argument(
        "model",
        metavar="RUN|MODEL",
        help=MODEL_HELP,
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help=f"any of {', '.join(_KEYS)}; method is all (default), linear, ridge, knn, fc or mlp; "
        "features of an embedding run are trunk (default) or embedding",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Embed both splits, fit each probe, then print and save."""
    sources, settings = split_words([arguments.model, *arguments.settings], keys=_KEYS)
    if len(sources) != 1:
        raise ValueError(f"one model is probed at a time, and settings are written key=value: not {sources}")

    from vitrail.inference.probing import probe, render_probes

    found = probe(sources[0], world=arguments.world, **settings)
    for remark in found.remarks:
        print(remark, file=sys.stderr)
    print(json.dumps(dict(found.record), indent=2) if arguments.json else render_probes(found.record))
    return 0
