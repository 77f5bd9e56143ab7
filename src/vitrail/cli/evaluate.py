"""Measure a trained model: accuracy, calibration, the classes it confuses, and other image sizes and crop ratios."""

import argparse
import contextlib
import dataclasses
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset
    from vitrail.data.quarantine import Problem
    from vitrail.evaluation.classify import ClassificationMeter
    from vitrail.training.recipe import Recipe
    from vitrail.training.trained import Trained

SUMMARY = "measure a trained model on data"

_KEYS = ("data", "split", "level", "image_size", "crop_ratio", "batch_size", "workers", "precision", "device")
_LABELS = {
    "top1": "top-1",
    "top5": "top-5",
    "coarse_top1": "coarse top-1",
    "class_mean_top1": "mean of classes",
    "calibration_error": "calibration error",
}
_BATCH_SIZE = 64
_NUM_SHOWN = 5  # classes and confusions; --json has them all
_NUM_NAMED = 10  # images that could not be read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail evaluate` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help="a run's folder, a saved model's, or hf://OWNER/NAME")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help=f"any of {', '.join(_KEYS)}; without data=SPEC it is measured on the run's own val",
    )
    parser.add_argument("--sizes", metavar="160,224,288", help="image sizes to compare")
    parser.add_argument("--crop-ratios", metavar="0.875,1.0", help="crop ratios to compare")
    parser.add_argument("--json", action="store_true", help="print everything as JSON: all classes, all confusions")


def run(arguments: argparse.Namespace) -> int:
    """Measure, then print."""
    settings = _read_settings(arguments.settings)
    sizes = _numbers(arguments.sizes, "--sizes", int)
    ratios = _numbers(arguments.crop_ratios, "--crop-ratios", float)

    from vitrail.training.trained import load_trained

    trained = load_trained(arguments.model).seeing(
        image_size=_image_size(settings.get("image_size")), crop_ratio=_crop_ratio(settings.get("crop_ratio"))
    )
    data, level = _open_data(arguments.model, settings, trained)
    measure = _Measure(data, level, trained, settings)
    main = measure(trained)
    report = measure.describe(trained) | main.figures | {"num_left_out": len(main.unread)}
    for problem in main.unread[:_NUM_NAMED]:
        print(f"left out: {problem.path} {problem.detail}", file=sys.stderr)
    details = _describe_classes(main.meter, trained.classes or data.level(level).classes)
    sweep = []
    for size in sizes or ([None] if ratios else []):
        for ratio in ratios or [None]:
            seen = trained.seeing(image_size=size, crop_ratio=ratio)
            figures = main.figures if seen.view == trained.view else measure(seen).figures
            sweep.append({"image_size": seen.view.image_size, "crop_ratio": seen.view.crop_ratio} | figures)
    if arguments.json:
        import json

        print(json.dumps(report | details | ({"sweep": sweep} if sweep else {}), indent=2))
    else:
        print("\n".join([*_show(report), *_show_sweep(sweep), *_show_classes(details)]))
    return 0


class _Measured:
    """What one pass over the data gave."""

    def __init__(self, meter: "ClassificationMeter", unread: "list[Problem]") -> None:
        self.meter, self.unread = meter, unread
        self.figures: dict[str, Any] = {**dict(meter.results()), "count": meter.count}


class _Measure:
    """Passes over the data, each with a model for another picture."""

    def __init__(self, data: "Dataset", level: str, trained: "Trained", settings: Mapping[str, Any]) -> None:
        from vitrail.evaluation.predict import choose_device, choose_precision
        from vitrail.training.build import default_workers, find_coarse
        from vitrail.training.trained import match_classes

        self.data, self.level = data, level
        self.device = choose_device(str(settings.get("device", "auto")))
        self.dtype = choose_precision(str(settings.get("precision", "auto")), self.device)
        self.batch_size = _whole(settings.get("batch_size", _BATCH_SIZE), "batch_size", least=1)
        self.workers = _whole(settings.get("workers", default_workers(self.device)), "workers", least=0)
        self.places = match_classes(trained, data.level(level).classes, name=data.name)
        self.coarse_of = trained.coarse.of if trained.coarse else None
        if self.coarse_of is None and self.places is None:
            self.coarse_of = find_coarse(data, level)[1]

    def __call__(self, trained: "Trained") -> _Measured:
        import vitrail
        from vitrail.evaluation.classify import ClassificationMeter
        from vitrail.training.trained import answer, map_targets

        meter = ClassificationMeter(trained.num_classes, coarse_of=self.coarse_of)
        unread: list[Problem] = []
        answers = answer(
            dataclasses.replace(trained, model=vitrail.fold(trained.model)),
            self.data,
            device=self.device,
            dtype=self.dtype,
            level=self.level,
            batch_size=self.batch_size,
            workers=self.workers,
            note_unread=unread.append,
        )
        with _show_progress(f"{trained.view.image_size} px", total=len(self.data)) as advance:
            for logits, batch in answers:
                meter.update(logits, map_targets(batch.targets, self.places, num_classes=trained.num_classes))
                advance(len(logits))
        return _Measured(meter, unread)

    def describe(self, trained: "Trained") -> dict[str, Any]:
        """What is measured on what."""
        return {
            "model": trained.model.name,
            "data": self.data.name,
            "split": self.data.split,
            "level": self.level,
            "image_size": trained.view.image_size,
            "crop_ratio": trained.view.crop_ratio,
            "precision": str(self.dtype).removeprefix("torch."),
        }


def _read_settings(words: list[str]) -> dict[str, Any]:
    from vitrail.training.settings import parse_assignments

    settings = parse_assignments(words)
    for key in settings:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_KEYS)}"
            raise ValueError(f"unknown key {key!r}; {hint}")
    return settings


def _open_data(source: str, settings: Mapping[str, Any], trained: "Trained") -> "tuple[Dataset, str]":
    """The data asked for, or the run's own, and the name of the labels that count."""
    from pathlib import Path

    from vitrail.data.datasets import open_dataset
    from vitrail.data.splits import canonical

    recipe = _find_recipe(source)
    split = str(settings.get("split", "val"))
    share = recipe.data.val_share if recipe else 0.1
    if "data" in settings:
        data = open_dataset(str(settings["data"]), split, val_share=share)
    elif recipe is None or recipe.data.spec is None:
        raise ValueError(f"{source} is no run that has data of its own: add data=SPEC")
    elif recipe.data.val is not None and canonical(split) == "val":
        data = open_dataset(recipe.data.val, split, val_share=share)
    else:
        exclude = Path(recipe.data.quarantine) if recipe.data.quarantine else None
        data = open_dataset(recipe.data.spec, split, val_share=share, exclude=exclude)
    level = settings.get("level")
    if level is None:
        level = trained.level if trained.level in data.levels else next(iter(data.levels))
    data.level(str(level))  # an unknown one is an error
    return data, str(level)


def _find_recipe(source: str) -> "Recipe | None":
    """The last stage of the run, where there is one."""
    from pathlib import Path

    from vitrail.training.run_folder import RunFolder
    from vitrail.training.settings import read_recipe, stage_of

    folder = RunFolder(Path(source).expanduser())
    if not folder.is_begun:
        return None
    recipe = read_recipe(folder.recipe_file)
    return stage_of(recipe, recipe.num_stages - 1)


def _whole(value: Any, key: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, not {value!r}")
    return value


def _image_size(value: Any) -> "int | tuple[int, int] | None":
    """A side, or [height, width]."""
    if isinstance(value, list) and len(value) == 2:
        return _whole(value[0], "image_size", least=1), _whole(value[1], "image_size", least=1)
    return None if value is None else _whole(value, "image_size", least=1)


def _crop_ratio(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"crop_ratio must be a number above 0 and at most 1, not {value!r}")
    return float(value)


def _numbers(text: str | None, option: str, kind: Callable[[str], Any]) -> list[Any]:
    """Numbers between commas."""
    try:
        numbers = [kind(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        numbers = []
    if text is not None and (not numbers or min(numbers) <= 0):
        raise ValueError(f"{option} takes positive numbers with commas between them, not {text!r}")
    return numbers


@contextlib.contextmanager
def _show_progress(name: str, *, total: int) -> Iterator[Callable[[int], object]]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal, redirect_stdout=False) as bars:
        task = bars.add_task(name, total=total)
        yield lambda count: bars.advance(task, count)


def _describe_classes(meter: "ClassificationMeter", classes: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy of each class and all confusions, the most frequent first."""
    from vitrail.evaluation.classify import MAX_CONFUSION_CLASSES

    accuracy: list[float | None] = [None if value != value else value for value in meter.class_accuracy().tolist()]
    if meter.num_classes > MAX_CONFUSION_CLASSES:
        rows = [{"class": name, "top1": value} for name, value in zip(classes, accuracy, strict=True)]
        return {"classes": rows}
    confusion = meter.confusion()
    counts = confusion.sum(dim=1).tolist()
    rows = [
        {"class": name, "count": count, "top1": value}
        for name, count, value in zip(classes, counts, accuracy, strict=True)
    ]
    confusion.fill_diagonal_(0)
    pairs = sorted(((int(confusion[i, j]), i, j) for i, j in confusion.nonzero().tolist()), key=lambda pair: -pair[0])
    confusions = [{"class": classes[i], "answer": classes[j], "count": count} for count, i, j in pairs]
    return {"classes": rows, "confusions": confusions}


def _show(report: Mapping[str, Any]) -> Iterator[str]:
    size = report["image_size"]
    pixels = f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
    left_out = report["num_left_out"]
    yield (
        f"{report['model']} on {report['split']} of {report['data']}: {report['count']:,} images at {pixels}, "
        f"crop ratio {report['crop_ratio']:g}, {report['precision']}"
    )
    if left_out:
        yield f"{left_out:,} {'image' if left_out == 1 else 'images'} left out that could not be read"
    yield ""
    for key, label in _LABELS.items():
        if key in report:
            yield f"{label:<24}{report[key]:8.2f} %"
    yield f"{'negative log-likelihood':<24}{report['negative_log_likelihood']:9.3f}"


def _show_sweep(sweep: list[dict[str, Any]]) -> Iterator[str]:
    if not sweep:
        return
    has_coarse = "coarse_top1" in sweep[0]
    best = max(sweep, key=lambda row: row["top1"])
    yield ""
    yield "image size  crop ratio    top-1    top-5" + ("   coarse" if has_coarse else "")
    for row in sweep:
        coarse = f"{row['coarse_top1']:9.2f}" if has_coarse else ""
        mark = "  best" if row is best and len(sweep) > 1 else ""
        size = row["image_size"] if isinstance(row["image_size"], int) else "x".join(map(str, row["image_size"]))
        yield f"{size!s:>10}{row['crop_ratio']:12.4g}{row['top1']:9.2f}{row['top5']:9.2f}{coarse}{mark}"


def _show_classes(details: Mapping[str, Any]) -> Iterator[str]:
    measured = [row for row in details["classes"] if row["top1"] is not None]
    hardest = sorted(measured, key=lambda row: row["top1"])[:_NUM_SHOWN]
    if hardest:
        yield ""
        yield f"hardest of {len(measured)} classes"
        width = max(len(row["class"]) for row in hardest)
        for row in hardest:
            count = f" of {row['count']:,}" if "count" in row else ""
            yield f"  {row['class']:<{width}}  {row['top1']:6.2f} %{count}"
    confusions = details.get("confusions", [])[:_NUM_SHOWN]
    if confusions:
        yield ""
        yield "most confused (--json has all)"
        width = max(len(row["class"]) for row in confusions)
        for row in confusions:
            yield f"  {row['class']:<{width}}  taken for {row['answer']}: {row['count']:,}"
