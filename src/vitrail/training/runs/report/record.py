"""What a run folder holds, as far as it goes: a run that has just begun or was killed lacks parts of it."""

import csv
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vitrail.data.quarantine import Problem
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import read_recipe, stage_of

Line = Mapping[str, Any]  # of metrics.jsonl
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Classes:
    """The names of the classes and, where there is a coarser level, to which of its classes each belongs."""

    names: tuple[str, ...] = ()
    coarse_names: tuple[str, ...] = ()
    coarse_of: tuple[int, ...] = ()

    def name(self, index: int) -> str:
        """Of a class; its number where the names are not known."""
        return self.names[index] if 0 <= index < len(self.names) else f"class {index}"

    def coarse(self, index: int) -> str | None:
        """The coarse class of a class."""
        return self.coarse_names[self.coarse_of[index]] if index < len(self.coarse_of) else None


@dataclass(frozen=True, eq=False)
class Predictions:
    """The answers of an evaluation to the images that have a label; all arrays are [images]."""

    indices: np.ndarray  # places in the data set
    targets: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray  # probability of the predicted class
    target_probability: np.ndarray

    @property
    def is_right(self) -> np.ndarray:
        """Which answers are right."""
        return self.predicted == self.targets


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run as its folder tells it."""

    folder: Path
    recipe: Recipe | None
    recipe_text: str
    classes: Classes
    train: tuple[Line, ...]  # in the order of steps, each step once
    evaluations: tuple[Line, ...]
    plan: Mapping[str, Any]
    quarantine: tuple[Problem, ...]
    predictions: Predictions | None
    unreadable: tuple[str, ...]  # files that are there but can't be read, and why

    @property
    def stage(self) -> int:
        """The stage the run has come to."""
        return max((stage_number(line) for line in (*self.train[-1:], *self.evaluations[-1:])), default=0)

    @property
    def stage_recipe(self) -> Recipe | None:
        """The recipe of that stage."""
        if self.recipe is None or self.stage >= self.recipe.num_stages:
            return self.recipe
        return stage_of(self.recipe, self.stage)

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end, where it leaves the model."""
        return (self.folder / "model").is_dir()


def number(line: Line | None, key: str) -> float:
    """A value of a line of metrics; not a number where it is missing or not finite."""
    value = None if line is None else line.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return math.nan
    return float(value)


def stage_number(line: Line) -> int:
    """The stage that a line of metrics belongs to."""
    stage = number(line, "stage")
    return 0 if math.isnan(stage) else int(stage)


def read_run(folder: Path) -> RunRecord:
    """All that can be read of a run folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a run")
    unreadable: list[str] = []

    def read(name: str, reader: Callable[[Path], _Read], otherwise: _Read) -> _Read:
        if not (folder / name).exists():
            return otherwise
        try:
            return reader(folder / name)
        except (OSError, ValueError, TypeError, KeyError, csv.Error, zipfile.BadZipFile, zlib.error, EOFError) as error:
            unreadable.append(f"{name}: {error}")
            return otherwise

    recipe = read("recipe.yaml", _read_recipe, None)
    none: tuple[Line, ...] = ()
    lines = read("metrics.jsonl", _read_lines, none)
    return RunRecord(
        folder=folder,
        recipe=recipe,
        recipe_text=read("recipe.yaml", _read_text, ""),
        classes=read("task.json", _read_classes, read("classes.json", _read_classes, Classes())),
        train=_of_kind(lines, "train"),
        evaluations=_of_kind(lines, "eval"),
        plan=read("plan.json", _read_mapping, {}),
        quarantine=read("quarantine.csv", _read_quarantine, ()),
        predictions=read("predictions.npz", _read_predictions, None),
        unreadable=tuple(unreadable),
    )


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _read_recipe(path: Path) -> Recipe | None:
    return read_recipe(path)


def _read_lines(path: Path) -> tuple[Line, ...]:
    """The lines that are whole: the last one of a killed run may not be."""
    lines: list[Line] = []
    for text in _read_text(path).splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return tuple(lines)


def _of_kind(lines: Sequence[Line], kind: str) -> tuple[Line, ...]:
    """In the order of steps: what a resumed run went through a second time counts as it went then."""
    kept: list[Line] = []
    for line in lines:
        if line.get("kind") != kind or math.isnan(number(line, "step")):
            continue
        while kept and _moment(kept[-1]) >= _moment(line):
            kept.pop()
        kept.append(line)
    return tuple(kept)


def _moment(line: Line) -> tuple[int, float]:
    return stage_number(line), number(line, "step")


def _read_mapping(path: Path) -> Mapping[str, Any]:
    content = json.loads(_read_text(path))
    if not isinstance(content, dict):
        raise ValueError("holds no keys and values")
    return content


def _read_classes(path: Path) -> Classes:
    content = _read_mapping(path)
    names = tuple(str(name) for name in content["classes"])
    coarse = content.get("coarse")
    if not coarse:
        return Classes(names)
    coarse_names, coarse_of = tuple(str(name) for name in coarse["classes"]), tuple(int(of) for of in coarse["of"])
    if len(coarse_of) != len(names) or not all(0 <= of < len(coarse_names) for of in coarse_of):
        raise ValueError("gives no coarse class for each class")
    return Classes(names, coarse_names, coarse_of)


def _read_quarantine(path: Path) -> tuple[Problem, ...]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file)
        return tuple(Problem(*(row.get(column) or "" for column in Problem._fields)) for row in rows)


def _read_predictions(path: Path) -> Predictions | None:
    with np.load(path, allow_pickle=False) as arrays:
        indices, targets, predicted = (arrays[name] for name in ("indices", "targets", "predicted"))
        confidence, target_probability = arrays["confidence"], arrays["target_probability"]
    columns = (indices, targets, predicted, confidence, target_probability)
    if any(column.shape != indices.shape or column.ndim != 1 for column in columns):
        raise ValueError("its arrays are not all of one length")
    has_label = (targets >= 0) & (predicted >= 0)
    if not has_label.any():
        return None
    return Predictions(
        indices=indices[has_label].astype(np.int64),
        targets=targets[has_label].astype(np.int64),
        predicted=predicted[has_label].astype(np.int64),
        confidence=np.nan_to_num(confidence[has_label].astype(np.float64)),
        target_probability=np.nan_to_num(target_probability[has_label].astype(np.float64)),
    )
