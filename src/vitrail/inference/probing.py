"""Probes of a trained model: small classifiers on its frozen embeddings, which say how well it transfers."""

import dataclasses
import io
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vitrail.data.contract import Dataset, Level
from vitrail.evaluation.features import Embeddings, embed
from vitrail.evaluation.probe import Probe, best_linear, choose_methods, run_probe
from vitrail.evaluation.probe_data import label
from vitrail.evaluation.probed_model import attach_probe, check_attachable
from vitrail.evaluation.together import Alone, Together, leave_rest_to_main
from vitrail.inference.description import TASK_FILE
from vitrail.inference.passes import (
    Passes,
    check_keys,
    load_seeing,
    make_extraction,
    open_data,
    show_progress,
)
from vitrail.inference.trained import Trained
from vitrail.settings.recipe import Recipe
from vitrail.tasks.images.labelled_data import LabelledData, find_coarse
from vitrail.weights import save_model
from vitrail.weights.save import CONFIG_FILE

_NAMED = 10  # images that could not be read
_FIGURES = {"top1": "top-1", "top5": "top-5", "mean_average_precision": "mean average precision"}
_FEATURES = ("trunk", "embedding")
_WIDE = 200  # columns, where nobody's terminal sets a limit


@dataclass(frozen=True, eq=False, repr=False)
class ProbeReport:
    """What the embeddings of a model are worth."""

    record: Mapping[str, Any]  # all of it, for JSON
    probes: tuple[Probe, ...]
    remarks: tuple[str, ...]  # what a person should know besides

    def __repr__(self) -> str:
        return render_probes(self.record, width=_WIDE)


def probe(
    source: str | os.PathLike[str],
    *,
    data: str | None = None,
    method: str = "all",
    init: str | None = None,
    out: str | os.PathLike[str] | None = None,
    cache: str | None = None,
    features: str = "trunk",
    world: Together | None = None,
    **settings: Any,
) -> ProbeReport:
    """Embed both splits with a run, a saved model, a pack or a model by name, and fit each probe.

    `init` gives other weights to a model by name: a file, or "random" for the floor that training starts from.
    `method` is all, linear, ridge, knn, fc or mlp; `out` saves the best linear probe as the classifier of the trunk.
    `features` of a run that learnt an embedding are those of its trunk, for "the projector is discarded" (thesis
    2.4.6), or with "embedding" what it searches by. Further settings are those of `vitrail probe`: split, level,
    image_size, batch_size, workers, device ... Processes that have joined a `world` embed a share of the images each;
    the main one goes on with all of them, and the others end.
    """
    world = world or Alone()
    text = os.fspath(source) if init is None else f"{source} init={init}"
    check_keys(settings)
    given = {"method": method, "out": out, "cache": cache, "data": data, **settings}
    given = {key: value for key, value in given.items() if value is not None}
    remarks: list[str] = []
    methods = choose_methods(method)
    folder = _check_out(out, text, methods)
    trained = _choose_features(load_seeing(text, given), features)
    if folder is not None:
        check_attachable(trained.model)
    if trained.model.reads_patches:
        remarks.append(f"the class stage of this {trained.model.name} has learnt nothing: means of patches are probed")
    val_data, level = open_data(text, {"split": "val", **given}, trained)
    train_data, _ = open_data(text, {**given, "split": "train"}, trained)
    splits = {"train": train_data, "val": val_data}
    labels = {split: found.level(level) for split, found in splits.items()}
    _check_labels(splits, labels)

    start = time.perf_counter()
    embeddings, precision = _embed(trained, splits, level, given, remarks, world=world)
    leave_rest_to_main(world)
    seconds = time.perf_counter() - start
    train, val = (label(embeddings[split], labels[split]) for split in ("train", "val"))
    report: dict[str, Any] = {
        "model": trained.model.name,
        "features": features,
        "data": splits["val"].name,
        "split": splits["val"].split,
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
    for name in methods:
        with show_progress(name, total=1):
            probes.append(run_probe(name, train, val))
    report["probes"] = [_describe(probe) for probe in probes]
    if folder is not None:
        report["saved"] = _save(folder, trained, probes, data=splits, level=level)
    return ProbeReport(report, tuple(probes), tuple(remarks))


def _choose_features(trained: Trained, features: str) -> Trained:
    """The model whose summary is probed; where there is no projector, trunk and embedding are one."""
    if features not in _FEATURES:
        raise ValueError(f"features={features}: choose one of {', '.join(_FEATURES)}")
    if features == "embedding" or trained.model.trunk is trained.model:
        return trained
    return dataclasses.replace(trained, model=trained.model.trunk)


def _check_labels(data: Mapping[str, Dataset], labels: Mapping[str, Level]) -> None:
    train, val = labels["train"], labels["val"]
    if train.classes != val.classes:
        raise ValueError(f"the classes of {data['val'].name} are not those of {data['train'].name}")
    if len(train.classes) < 2:
        raise ValueError(f"{data['train'].name} has {len(train.classes)} class: there is nothing to tell apart")


def _embed(
    trained: Trained,
    data: Mapping[str, Dataset],
    level: str,
    settings: Mapping[str, Any],
    remarks: list[str],
    *,
    world: Together,
) -> tuple[dict[str, Embeddings], str]:
    """The embeddings of each split, and the precision they were computed in."""
    passes = Passes(data["train"], level, settings, world=world)
    extraction = make_extraction(trained, passes)
    cache = settings.get("cache")
    found = {}
    for split, dataset in data.items():
        with show_progress(f"embeddings of {split}", total=len(dataset)) as advance:
            found[split] = embed(extraction, dataset, cache=None if cache is None else str(cache), advance=advance)
        remarks += [f"left out: {problem.path} {problem.detail}" for problem in found[split].unread[:_NAMED]]
    return found, str(passes.dtype).removeprefix("torch.")


def _check_out(out: Any, source: str, methods: Iterable[str]) -> Path | None:
    """The folder for the model; whatever speaks against it is said before the work begins."""
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
    out: Path, trained: Trained, probes: list[Probe], *, data: Mapping[str, Dataset], level: str
) -> dict[str, str]:
    """The best linear probe as the classifier of the trunk, in a folder that predict and evaluate take."""

    best = best_linear(probes)
    assert best.linear is not None
    model = attach_probe(trained.model, best.linear)
    model.preprocessing = dataclasses.replace(model.preprocessing, crop_ratio=trained.view.crop_ratio)
    labelled = LabelledData(data["train"], data["val"], level, *find_coarse(data["train"], level))
    description = {"task": Recipe.model_fields["task"].default, **labelled.describe()}
    save_model(model, out, documents={TASK_FILE: description})
    return {"folder": str(out), "method": best.method}


def _describe(probe: Probe) -> dict[str, Any]:
    return {
        "method": probe.method,
        **probe.figures,
        "setting": dict(probe.setting),
        "held_out": probe.held_out,
        "seconds": round(probe.seconds, 2),
    }


def render_probes(report: Mapping[str, Any], *, width: int | None = None) -> str:
    """A table of the probes, as wide as the terminal or as `width` says."""
    file = io.StringIO()
    console = Console(file=file, highlight=False, width=width or Console().width)
    size = report["image_size"]
    pixels = f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
    lines = [
        f"{report['model']} on {report['data']}: {report['num_classes']:,} classes, {report['num_train']:,} training "
        f"images, {report['num_val']:,} of {report['split']} at {pixels}, {report['precision']}, {report['dim']:,} "
        f"numbers an image, {report['embedding_seconds']:.1f} s"
    ]
    if report["num_left_out"]:
        lines.append(f"{report['num_left_out']:,} left out that could not be read")
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
    console.print(table)
    lines.append(file.getvalue().rstrip("\n"))
    if "saved" in report:
        saved = report["saved"]
        lines.append(f"the {saved['method']} probe is the classifier of the model in {saved['folder']}")
    return "\n".join(lines)
