"""Fit small classifiers to the embeddings of a fixed trunk, to see how well it transfers to other data."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.passes import (
    KEYS,
    Passes,
    load_seeing,
    make_extraction,
    open_data,
    read_image_size,
    seeing,
    show_progress,
    split_words,
)
from vitrail.models.catalog import CATALOG, TIMM_PREFIX, create_model

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset, Level
    from vitrail.evaluation.features import Embeddings
    from vitrail.evaluation.probe import Probe
    from vitrail.inference.trained import Trained

SUMMARY = "see how well a model's embeddings transfer to other data"

_KEYS = ("data", "method", "init", "out", "cache", *(key for key in KEYS if key != "data"))
_NAMED = 10  # images that could not be read
_FIGURES = {"top1": "top-1", "top5": "top-5", "mean_average_precision": "mean average precision"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail probe` takes."""
    parser.add_argument(
        "model",
        metavar="RUN|MODEL",
        help="a folder of a run, a model or a pack, hf://OWNER/NAME, or a model's name (with init=WEIGHTS)",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help=f"any of {', '.join(_KEYS)}; method is all (default), linear, ridge, knn, fc or mlp",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Embed both splits, fit each probe, then print and save."""
    sources, settings = split_words([arguments.model, *arguments.settings], keys=_KEYS)
    if len(sources) != 1:
        raise ValueError(f"one model is probed at a time, and settings are written key=value: not {sources}")

    from vitrail.evaluation.probe import choose_methods, run_probe
    from vitrail.evaluation.probe_data import label
    from vitrail.evaluation.probed_model import check_attachable

    methods = choose_methods(str(settings.get("method", "all")))
    out = _check_out(settings.get("out"), sources[0], methods)
    trained = _load(sources[0], settings)
    if out is not None:
        check_attachable(trained.model)
    val_data, level = open_data(sources[0], settings, trained)
    train_data, _ = open_data(sources[0], {**settings, "split": "train"}, trained)
    data = {"train": train_data, "val": val_data}
    labels = {split: found.level(level) for split, found in data.items()}
    _check_labels(data, labels)

    start = time.perf_counter()
    embeddings, precision = _embed(trained, data, level, settings)
    seconds = time.perf_counter() - start
    train, val = (label(embeddings[split], labels[split]) for split in ("train", "val"))
    report: dict[str, Any] = {
        "model": trained.model.name,
        "data": data["val"].name,
        "split": data["val"].split,
        "level": level,
        "image_size": trained.view.image_size,
        "crop_ratio": trained.view.crop_ratio,
        "precision": precision,
        "dim": train.vectors.shape[1],
        "num_classes": train.num_classes,
        "num_train": len(train),
        "num_val": len(val),
        "num_left_out": sum(len(found.unread) for found in embeddings.values()),
        "embedding_seconds": round(seconds, 2),
    }
    probes = []
    for method in methods:
        with show_progress(method, total=1):
            probes.append(run_probe(method, train, val))
    report["probes"] = [_describe(probe) for probe in probes]
    if out is not None:
        report["saved"] = _save(out, trained, probes, data=data, level=level)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def _load(source: str, settings: Mapping[str, Any]) -> "Trained":
    """The model of a folder or of the hub; or of a name, with the weights of init=."""
    init = settings.get("init")
    is_name = source in CATALOG or source.startswith(TIMM_PREFIX)
    if not is_name or (init is None and Path(source).is_dir()):
        if init is not None:
            raise ValueError(f"init= gives weights to a model of the catalogue or timm/NAME, which {source} is not")
        return load_seeing(source, settings)

    import torch

    from vitrail.inference.trained import make_trained
    from vitrail.weights import load_weights

    if "trunk" in settings:
        raise ValueError(f"{source} is no pack: it has no trunk=")
    image_size = read_image_size(settings.get("image_size"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create_model(source, num_classes=0, **({} if image_size is None else {"image_size": image_size}))
    if init is None:
        print(f"{source} has random weights: give those it was trained to with init=WEIGHTS", file=sys.stderr)
    else:
        load_weights(model, str(init), reset_head=True)
    return seeing(make_trained(model, None, label=source), settings)


def _check_labels(data: "Mapping[str, Dataset]", labels: "Mapping[str, Level]") -> None:
    train, val = labels["train"], labels["val"]
    if train.classes != val.classes:
        raise ValueError(f"the classes of {data['val'].name} are not those of {data['train'].name}")
    if len(train.classes) < 2:
        raise ValueError(f"{data['train'].name} has {len(train.classes)} class: there is nothing to tell apart")


def _embed(
    trained: "Trained", data: "Mapping[str, Dataset]", level: str, settings: Mapping[str, Any]
) -> "tuple[dict[str, Embeddings], str]":
    """The embeddings of each split, and the precision they were computed in."""
    from vitrail.evaluation.features import embed

    passes = Passes(data["train"], level, settings)
    extraction = make_extraction(trained, passes)
    cache = settings.get("cache")
    found = {}
    for split, dataset in data.items():
        with show_progress(f"embeddings of {split}", total=len(dataset)) as advance:
            found[split] = embed(extraction, dataset, cache=None if cache is None else str(cache), advance=advance)
        for problem in found[split].unread[:_NAMED]:
            print(f"left out: {problem.path} {problem.detail}", file=sys.stderr)
    return found, str(passes.dtype).removeprefix("torch.")


def _check_out(out: Any, source: str, methods: Iterable[str]) -> Path | None:
    """The folder for the model; whatever speaks against it is said before the work begins."""
    from vitrail.weights.save import CONFIG_FILE

    if out is None:
        return None
    folder = Path(str(out)).expanduser()
    if not {"linear", "ridge", "fc"} & set(methods):
        raise ValueError("out= saves a linear probe: use it with method=linear, ridge, fc or all")
    if folder.exists() and Path(source).exists() and folder.samefile(source):
        raise ValueError(f"out={out} is the model that is probed: choose another folder")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG_FILE).is_file()):
        raise ValueError(f"out={out} holds something else: choose an empty or new folder")
    return folder


def _save(
    out: Path, trained: "Trained", probes: "list[Probe]", *, data: "Mapping[str, Dataset]", level: str
) -> dict[str, str]:
    """The best linear probe as the classifier of the trunk, in a folder that predict and evaluate take."""
    from vitrail.evaluation.probe import best_linear
    from vitrail.evaluation.probed_model import attach_probe
    from vitrail.inference.trained import TASK_FILE
    from vitrail.storage import write_json
    from vitrail.tasks.images.labelled_data import LabelledData, find_coarse
    from vitrail.weights import save_model

    best = best_linear(probes)
    assert best.linear is not None
    model = attach_probe(trained.model, best.linear)
    model.preprocessing = dataclasses.replace(model.preprocessing, crop_ratio=trained.view.crop_ratio)
    labelled = LabelledData(data["train"], data["val"], level, *find_coarse(data["train"], level))
    description = {"task": "classify", **labelled.describe()}
    save_model(model, out)
    write_json(out / TASK_FILE, description)
    return {"folder": str(out), "method": best.method}


def _describe(probe: "Probe") -> dict[str, Any]:
    return {
        "method": probe.method,
        **probe.figures,
        "setting": dict(probe.setting),
        "held_out": probe.held_out,
        "seconds": round(probe.seconds, 2),
    }


def _print(report: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    size = report["image_size"]
    pixels = f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
    print(
        f"{report['model']} on {report['data']}: {report['num_classes']:,} classes, {report['num_train']:,} training "
        f"images, {report['num_val']:,} of {report['split']} at {pixels}, {report['precision']}, {report['dim']:,} "
        f"numbers an image, {report['embedding_seconds']:.1f} s"
    )
    if report["num_left_out"]:
        print(f"{report['num_left_out']:,} left out that could not be read")
    figures = [name for name in _FIGURES if name in report["probes"][0]]
    table = Table(box=SIMPLE_HEAD)
    table.add_column("method")
    for name in (*(_FIGURES[figure] for figure in figures), "held out"):
        table.add_column(name, justify="right")
    table.add_column("setting")
    table.add_column("seconds", justify="right")
    for row in report["probes"]:
        held_out = "" if row["held_out"] is None else f"{row['held_out']:.2f}"
        setting = ", ".join(f"{name} {value:.3g}" for name, value in row["setting"].items())
        numbers = [f"{row[figure]:.2f}" for figure in figures]
        table.add_row(row["method"], *numbers, held_out, setting, f"{row['seconds']:.1f}")
    Console(highlight=False).print(table)
    if "saved" in report:
        print(f"the {report['saved']['method']} probe is the classifier of the model in {report['saved']['folder']}")
