"""Write data into tar shards, in a folder or an object store; the same command again goes on where it stopped.

`vitrail shards make data=SPEC out=FOLDER` (or out=s3://bucket/name), then train with data=shards:FOLDER/shards.json.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.data.shard_making import MadeShards, ShardMaking

SUMMARY = "write data into tar shards, here or in an object store"

_KEYS = ("data", "out", "splits", "samples", "megabytes", "shuffle", "seed", "workers", "val_share", "quarantine")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail shards` takes."""
    parser.add_argument("action", choices=["make"], help="make: write shards")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="data=SPEC, out=FOLDER|ADDRESS, splits=[train, val] (default: all), samples=N in a shard or "
        "megabytes=256, shuffle=true, seed=0, workers=4, val_share=0.1 where there is no val (0: none), "
        "quarantine=FILE",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the shards, and say how they are opened."""
    from vitrail.settings.text import parse_assignments

    settings = parse_assignments(arguments.settings)
    for key in settings:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}; there are: {', '.join(_KEYS)}")
    for key in ("data", "out"):
        if not settings.get(key):
            raise ValueError(f"{key}= is missing: vitrail shards make data=SPEC out=FOLDER")

    from vitrail.data.datasets import open_source, open_split
    from vitrail.data.shard_making import make_shards

    how = _read_how(settings)
    share = settings.get("val_share", 0.1)
    if not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise ValueError(f"val_share must be a number from 0 to below 1, not {share!r}")
    source = open_source(str(settings["data"]), val_share=float(share), labels="optional")
    splits = settings.get("splits", source.splits)
    splits = [splits] if isinstance(splits, str) else list(splits)
    datasets = [open_split(source, str(split), exclude=settings.get("quarantine")) for split in splits]
    made = make_shards(datasets, out=str(settings["out"]), how=how, note=_show if sys.stderr.isatty() else None)
    print("\n".join(_lines(made)))
    return 0


def _read_how(settings: dict[str, Any]) -> "ShardMaking":
    from vitrail.data.loader import check_workers
    from vitrail.data.shard_making import ShardMaking

    samples, megabytes = settings.get("samples"), settings.get("megabytes", 256)
    if samples is not None and (type(samples) is not int or samples < 1):
        raise ValueError(f"samples must be a whole number of at least 1, not {samples!r}")
    if isinstance(megabytes, bool) or not isinstance(megabytes, (int, float)) or not 0 < megabytes <= 1e5:
        raise ValueError(f"megabytes must be a number above 0 and at most 100000, not {megabytes!r}")
    workers, seed, shuffle = settings.get("workers", 4), settings.get("seed", 0), settings.get("shuffle", True)
    if type(workers) is not int or workers < 1:
        raise ValueError(f"workers must be a whole number of at least 1, not {workers!r}")
    if type(seed) is not int or type(shuffle) is not bool:
        raise ValueError("seed must be a whole number, and shuffle true or false")
    return ShardMaking(
        samples=samples, megabytes=float(megabytes), shuffle=shuffle, seed=seed, workers=check_workers(workers)
    )


def _show(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rshards {done}/{total}", end=end, file=sys.stderr, flush=True)


def _lines(made: "MadeShards") -> list[str]:
    from vitrail.pages.words import count

    place = made.place.rstrip("/")
    parts = [
        f"{split}: {count(made.num_samples[split], 'image')} in {count(made.num_shards[split], 'shard')}"
        for split in made.num_samples
    ]
    kept = f", {made.num_kept} of them there already" if made.num_kept else ""
    total = sum(made.num_shards.values())
    return [
        *parts,
        f"{place}: {count(total, 'shard')}{kept}, {made.num_bytes / 1e6:,.1f} MB in {made.seconds:.1f} s",
        f"to train on them: data=shards:{place}/shards.json",
    ]
