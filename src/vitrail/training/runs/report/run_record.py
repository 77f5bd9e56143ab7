"""What a run folder holds, as far as it goes: a run that has just begun or was killed lacks parts of it."""

import csv
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitrail.data.quarantine import Problem
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import read_recipe, stage_of
from vitrail.storage import bare_cell, read_json_lines, read_json_object
from vitrail.storage.reading import WRONG_CONTENT
from vitrail.tasks import find_task
from vitrail.tasks.contract import Task
from vitrail.tasks.results import Measure

Line = Mapping[str, Any]  # of metrics.jsonl
_Read = TypeVar("_Read")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run as its folder tells it."""

    folder: Path
    recipe: Recipe | None
    recipe_text: str
    train: tuple[Line, ...]  # in the order of steps, each step once
    evaluations: tuple[Line, ...]
    plan: Mapping[str, Any]
    quarantine: tuple[Problem, ...]
    unreadable: list[str]  # files that are there but can't be read, and why

    def read(self, name: str, reader: Callable[[Path], _Read], otherwise: _Read) -> _Read:
        """What a file of the folder holds; one that can't be read is noted."""
        return _read_part(self.folder / name, reader, otherwise, unreadable=self.unreadable)

    @property
    def task(self) -> type[Task[Any]]:
        """What was learnt; classification where nobody knows."""
        name = self.stage_recipe.task if self.stage_recipe else Recipe.model_fields["task"].default
        try:
            return find_task(name)
        except (ValueError, ImportError, AttributeError) as error:
            self.unreadable.append(f"task {name}: {error}")
            return find_task(Recipe.model_fields["task"].default)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures of the run's task, from the first one on that its evaluations give."""
        measures = self.task.measures
        given = {key for line in self.evaluations for key in line}
        first = next((place for place, measure in enumerate(measures) if measure.key in given), 0)
        return measures[first:]

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
    """Everything that can be read of a run folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a run")
    unreadable: list[str] = []

    def read(name: str, reader: Callable[[Path], _Read], otherwise: _Read) -> _Read:
        return _read_part(folder / name, reader, otherwise, unreadable=unreadable)

    recipe = read("recipe.yaml", _read_recipe, None)
    none: tuple[Line, ...] = ()
    lines = read("metrics.jsonl", _read_lines, none)
    return RunRecord(
        folder=folder,
        recipe=recipe,
        recipe_text=read("recipe.yaml", _read_text, ""),
        train=_of_kind(lines, "train"),
        evaluations=_of_kind(lines, "eval"),
        plan=read("plan.json", _read_mapping, {}),
        quarantine=read("quarantine.csv", _read_quarantine, ()),
        unreadable=unreadable,
    )


def _read_part(path: Path, reader: Callable[[Path], _Read], otherwise: _Read, *, unreadable: list[str]) -> _Read:
    if not path.exists():
        return otherwise
    try:
        return reader(path)
    except (OSError, *WRONG_CONTENT, csv.Error, zipfile.BadZipFile, zlib.error, EOFError) as error:
        unreadable.append(f"{path.name}: {error}")
        return otherwise


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _read_recipe(path: Path) -> Recipe | None:
    return read_recipe(path)


def _read_lines(path: Path) -> tuple[Line, ...]:
    """The lines that are whole: the last one of a killed run may not be."""
    return tuple(line for line in read_json_lines(path) if isinstance(line, dict))


def _of_kind(lines: Sequence[Line], kind: str) -> tuple[Line, ...]:
    """Lines of a kind in the order of steps; of steps that a resumed run took a second time those count."""
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
    return read_json_object(path, remedy="the report goes without it")


def _read_quarantine(path: Path) -> tuple[Problem, ...]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file)
        return tuple(Problem(*(bare_cell(row.get(column) or "") for column in Problem._fields)) for row in rows)
