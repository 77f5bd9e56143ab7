"""Rank training images for images of val, and classify them on the fly, at every level of labels of the data."""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.retrieve_answers import ModelAnswers, RetrievalTask
from vitrail.cli.retrieve_text import write_csv, write_tables
from vitrail.cli.run_names import name_runs
from vitrail.inference.passes import (
    KEYS,
    load_seeing,
    open_asked,
    share_of_val,
    show_progress,
    split_words,
)

if TYPE_CHECKING:
    from vitrail.cli.retrieve_pictures import Pictures
    from vitrail.evaluation.retrieval import Levelled
    from vitrail.evaluation.together import Together
    from vitrail.inference.trained import Trained

SUMMARY = "measure retrieval and on-the-fly classes, level by level"

_KEYS = (
    *("data", "split", "out", "coarse", "query", "within", "focus", "colour", "methods", "splits", "cache"),
    *KEYS[KEYS.index("image_size") :],
)
_NAMED = 10  # images that could not be read
_REPORT, _TABLE, _CHART = "retrieval.json", "retrieval.csv", "granularity.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail retrieve` takes."""
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="RUN|key=value",
        help="folders of runs, models or packs, names such as deit_tiny, hf://OWNER/NAME; and any of "
        f"{', '.join(_KEYS)}",
    )
    parser.add_argument("--images", type=int, metavar="N", help="ask with so many images of val, chosen at random")
    parser.add_argument(
        "--lists", action="store_true", help="draw ranked lists into out=FOLDER (query=FILE or NUMBER: of that image)"
    )
    parser.add_argument(
        "--tsne",
        action="store_true",
        help="draw embeddings in the plane, coloured by the coarsest level (colour=LEVEL: another; within=CLASS: of "
        "one class; focus=CLASS: the others grey)",
    )
    parser.add_argument("--energy", action="store_true", help="draw the cumulative energy of principal components")
    parser.add_argument(
        "--granularity",
        action="store_true",
        help="draw kNN and mAP over the levels, a line for each method (methods=[NAME, ...]: of each run)",
    )
    parser.add_argument("--separability", action="store_true", help="how well random sub-classes can be told apart")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure run after run, then print, write and draw."""
    from vitrail.evaluation.together import leave_rest_to_main

    sources, settings = split_words(arguments.settings, keys=_KEYS)
    if not sources or "data" not in settings:
        raise ValueError("write `vitrail retrieve RUN [RUN ...] data=SPEC`")
    out = _open_out(arguments, settings)
    num_splits = _read_splits(arguments, settings)
    methods = _read_methods(arguments, settings, count=len(sources))
    task = _open_task(sources, settings, num_images=arguments.images, world=arguments.world)
    pictures = _plan_pictures(arguments, task)
    reports = []
    for name, source in name_runs(sources).items():
        trained = load_seeing(source, settings)
        level, num_classes = _find_training(source, trained, task)
        reports.append(
            {
                "run": name,
                "source": source,
                "trained_on": level,
                "num_train_classes": num_classes,
                **_measure(name, trained, task, pictures, trained_on=level, num_splits=num_splits),
            }
        )
    leave_rest_to_main(task.world)
    content = {
        "data": task.train.name,
        "split": task.val.split,
        "levels": {level: len(task.train.level(level).classes) for level in task.levels},
        "runs": reports,
    }
    if out is not None:
        files = [*_write(content, out), *pictures.draw(out)]
        if arguments.granularity:
            files.append(_draw_levels(content, methods, out / _CHART).name)
    if arguments.json:
        print(json.dumps(content, indent=2))
        return 0
    write_tables(content)
    if out is not None:
        print(f"{', '.join(files)} are in {out}")
    return 0


def _open_out(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> Path | None:
    """The folder for what is written; whatever speaks against it is said before the work begins."""
    drawn = [name for name in ("lists", "tsne", "energy", "granularity") if getattr(arguments, name)]
    if "out" not in settings:
        if drawn:
            raise ValueError(f"--{drawn[0]} draws a picture: say where with out=FOLDER")
        return None
    if arguments.tsne:
        from vitrail.evaluation.scatter import check_tsne

        check_tsne()
    folder = Path(str(settings["out"])).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={folder} can't be made a folder: {error.strerror}") from None
    return folder


def _write(content: Mapping[str, Any], out: Path) -> list[str]:
    """The figures as files; their names."""
    try:
        (out / _REPORT).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        write_csv(content, out / _TABLE)
    except OSError as error:
        raise ValueError(f"{error.filename or out} can't be written: {error.strerror}") from None
    return [_REPORT, _TABLE]


def _read_splits(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> int:
    """How many random splits are made; 0 without --separability."""
    from vitrail.evaluation.separability import NUM_SPLITS

    if not arguments.separability:
        if "splits" in settings:
            raise ValueError("splits= is the number of random splits of --separability: add it")
        return 0
    number = settings.get("splits", NUM_SPLITS)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"splits must be a whole number of at least 1, not {number!r}")
    return number


def _read_methods(arguments: argparse.Namespace, settings: Mapping[str, Any], *, count: int) -> list[str] | None:
    """The method of each run; None: by the names of the runs."""
    if "methods" not in settings:
        return None
    if not arguments.granularity:
        raise ValueError("methods= names the lines of --granularity: add it")
    methods = settings["methods"] if isinstance(settings["methods"], list) else [settings["methods"]]
    if len(methods) != count:
        raise ValueError(f"methods= has {len(methods)} names for {count} runs: give each run its method, in order")
    return [str(method) for method in methods]


def _draw_levels(content: Mapping[str, Any], methods: Sequence[str] | None, path: Path) -> Path:
    """The chart of figure 2.4, from the figures of all runs."""
    from vitrail.evaluation.granularity_drawing import LevelledRun, draw_granularity, find_method

    runs = content["runs"]
    names = methods or [find_method(run["run"], run["trained_on"]) for run in runs]
    levelled = [
        LevelledRun(run["run"], method, run["trained_on"], run["levels"])
        for run, method in zip(runs, names, strict=True)
    ]
    return draw_granularity(levelled, list(content["levels"]), path)


def _open_task(
    sources: Sequence[str], settings: Mapping[str, Any], *, num_images: int | None, world: "Together"
) -> RetrievalTask:
    """Both splits; data without a val of its own is split so that no run was trained on an image that asks."""
    import numpy as np
    import torch

    from vitrail.data.datasets import open_dataset
    from vitrail.data.stored import Subset
    from vitrail.evaluation.find_samples import find_samples
    from vitrail.evaluation.granularity import order_levels

    if num_images is not None and num_images < 1:
        raise ValueError(f"--images must be at least 1, not {num_images}")
    share = share_of_val(sources)
    train = open_dataset(str(settings["data"]), "train", val_share=share)
    val = open_asked(sources, str(settings["data"]), str(settings.get("split", "val")), val_share=share)
    if val.split == train.split:
        raise ValueError(f"the images of {val.split} are those that are ranked: ask with another split")
    queries = None
    if "query" in settings:
        wanted = settings["query"] if isinstance(settings["query"], list) else [settings["query"]]
        queries = tuple(find_samples(val, wanted))
    if num_images is not None and num_images < len(val):
        order = torch.randperm(len(val), generator=torch.Generator().manual_seed(0)).numpy()
        first = np.isin(order, queries or ())  # what is to be drawn is asked first
        chosen = np.sort(np.concatenate([order[first], order[~first]])[: max(num_images, int(first.sum()))])
        val = Subset(val, chosen)
        queries = None if queries is None else tuple(np.searchsorted(chosen, queries).tolist())
    levels = tuple(level for level in order_levels(train) if bool((val.level(level).labels >= 0).any()))
    if not levels:
        raise ValueError(f"{val.split} of {val.name} has no labels: there is nothing to measure by")
    if "coarse" in settings and settings["coarse"] not in levels:
        raise ValueError(f"{train.name} has no labels {settings['coarse']!r}; it has: {', '.join(levels)}")
    return RetrievalTask(train, val, levels, settings, queries, world)


def _plan_pictures(arguments: argparse.Namespace, task: RetrievalTask) -> "Pictures":
    from vitrail.cli.retrieve_pictures import Pictures

    within, focus, colour = (task.settings.get(key) for key in ("within", "focus", "colour"))
    for is_asked, has_picture, message in (
        (within is not None, arguments.tsne, "within=CLASS chooses the images of --tsne: add it"),
        (focus is not None, arguments.tsne, "focus=CLASS chooses what --tsne shows in colour: add it"),
        (colour is not None, arguments.tsne, "colour=LEVEL chooses the colours of --tsne: add it"),
        (task.queries is not None, arguments.lists, "query= chooses the images of --lists: add it"),
    ):
        if is_asked and not has_picture:
            raise ValueError(message)
    if colour is not None and colour not in task.levels:
        raise ValueError(f"colour= is a level of labels: {', '.join(task.levels)}; not {colour!r}")
    return Pictures(
        task.train,
        task.val,
        finest=task.levels[-1],
        with_lists=arguments.lists,
        with_tsne=arguments.tsne,
        with_energy=arguments.energy,
        within=None if within is None else str(within),
        focus=None if focus is None else str(focus),
        colour=None if colour is None else str(colour),
        queries=task.queries,
        coarse=task.coarse,
    )


def _find_training(source: str, trained: "Trained", task: RetrievalTask) -> tuple[str | None, int | None]:
    """The level that a run was trained on and its classes; one class for all where it used no labels.

    There is no level where the data has one of that name, but none of those classes.
    """
    from vitrail.evaluation.granularity import NO_LABELS
    from vitrail.tasks.images.initial_weights import locate_weights, read_classes

    if not trained.uses_labels:
        return NO_LABELS, 1
    classes = trained.classes or read_classes(Path(locate_weights(source)))
    if classes is None:
        return trained.level, None
    known = task.train.levels.get(trained.level or "")
    is_other = known is not None and set(known.classes).isdisjoint(classes)
    return None if is_other else trained.level, len(classes)


def _measure(
    name: str, trained: "Trained", task: RetrievalTask, pictures: "Pictures", *, trained_on: str | None, num_splits: int
) -> dict[str, Any]:
    """The figures of one run at every level; what pictures need of its embeddings is kept by them."""
    from vitrail.evaluation.granularity import choose_coarse
    from vitrail.evaluation.retrieval import evaluate_level

    answers = ModelAnswers(name, trained, task)
    images, queries = answers.embed(task.train), answers.embed(task.val)
    coarse_of = {
        level: choose_coarse(task.train, level, trained_on=trained_on, wanted=task.coarse) for level in task.levels
    }
    known = {
        level: None if coarse is None else answers.classify(task.val, coarse) for level, coarse in coarse_of.items()
    }
    if num_splits:
        answers.classify(task.train, task.coarse or task.levels[0])
    if not task.world.is_main:
        return {}
    figures = {}
    for level, coarse in coarse_of.items():
        probabilities = known[level]
        with show_progress(f"{name}: {level}", total=1):
            found = evaluate_level(queries, images, level, coarse=coarse, probabilities=probabilities)
        by = None if coarse is None else "neighbours" if probabilities is None else "classifier"
        figures[level] = {"coarse": coarse, "predicted_by": by, **found}
    pictures.add(name, queries=queries, images=images, places=answers.places(task.val, task.train))
    report = {
        "model": trained.model.name,
        "dim": images.vectors.shape[1],
        "num_images": len(images.vectors),
        "num_queries": len(queries.vectors),
        "num_left_out": answers.num_unread,
        "levels": figures,
    }
    if num_splits:
        report["separability"] = _separate(name, images, answers, task, num_splits=num_splits)
    return report


def _separate(
    name: str, images: "Levelled", answers: ModelAnswers, task: RetrievalTask, *, num_splits: int
) -> dict[str, Any]:
    """The row of table 2.1, with the coarse labels that are asked for, or the coarsest."""
    from vitrail.data.contract import Level
    from vitrail.evaluation.separability import measure_separability

    coarse = task.coarse or task.levels[0]
    labels = Level(task.train.level(coarse).classes, images.labels[coarse].numpy())
    probabilities = answers.classify(task.train, coarse)
    with show_progress(f"{name}: random sub-labels", total=num_splits) as advance:
        found = measure_separability(
            images.vectors, labels, probabilities=probabilities, num_splits=num_splits, advance=advance
        )
    return {"level": coarse, "num_splits": num_splits, **dataclasses.asdict(found)}
