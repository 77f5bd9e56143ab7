"""Training, pre-training and planning from Python, as the command line does it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.inference.trained import Trained, load_trained
from vitrail.recipes import check_runs, find_recipe
from vitrail.settings.overriding import override
from vitrail.settings.own import allow_own
from vitrail.settings.recipe import Recipe
from vitrail.training.loop.planning import Plan, make_plan
from vitrail.training.runs.changed_recipe import refuse_additions
from vitrail.training.runs.report import summarize
from vitrail.training.runs.run_folder import RunFolder
from vitrail.training.start import INTERRUPTED, PREEMPTED, train_here

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class Run:
    """A run that was trained, or as far as it has come."""

    path: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: `kind` is train or eval."""
        return RunFolder(self.path).read_metrics()

    @property
    def report(self) -> Path:
        """The page that shows how it went."""
        return self.path / "report.html"

    def load(self) -> Trained:
        """The trained model."""
        return load_trained(self.path)

    def __repr__(self) -> str:
        return f"{summarize(self.path)}\nreport: {self.report}"


def train(recipe: AnyPath | Recipe | None = None, *, data: AnyPath | None = None, out: AnyPath, **changes: Any) -> Run:
    """Train with a recipe (a name, a YAML file, or a `Recipe`), or go on with the run in `out`.

    Without a recipe it is the one of that run, and `changes` may change it where that is sound: epochs="+10", lr=1e-4.
    Changes are settings by their keys, dotted ones as `**{"optimizer.clip": 1.0}`. Ctrl-C saves the run and is a
    KeyboardInterrupt; the same call then goes on. Several processes (devices=2) are started as on the command line.
    """
    folder = RunFolder(Path(out))
    return _train(_read(recipe, folder, data=data, changes=changes), folder, is_changing=recipe is None)


def pretrain(
    recipe: AnyPath | Recipe | None = None, *, data: AnyPath | None = None, out: AnyPath, **changes: Any
) -> Run:
    """Learn from images without labels with a recipe such as "dino_small", or go on with the run in `out`.

    It is `train` for recipes that need no labels, and refuses others; `init=out` then starts a training with labels.
    """
    folder = RunFolder(Path(out))
    found = _read(recipe, folder, data=data, changes=changes)
    if found.needs_labels:
        raise ValueError(f"the recipe {found.name} learns from labels: start it with vitrail.train")
    return _train(found, folder, is_changing=recipe is None)


def _read(
    recipe: AnyPath | Recipe | None, folder: RunFolder, *, data: AnyPath | None, changes: dict[str, Any]
) -> Recipe:
    """The recipe that is asked for, or that of the run, with its changes."""
    if recipe is None:
        return folder.read_recipe_with(_allowed(changes, data=data))
    refuse_additions(changes)
    found = make_recipe(recipe, data=data, **changes)
    if not folder.has_progress:
        check_runs(found)
    return found


def _train(found: Recipe, folder: RunFolder, *, is_changing: bool) -> Run:
    """Train to the end."""
    code = train_here(found, folder, again=None, is_changing=is_changing, is_told=False)
    if code in (INTERRUPTED, PREEMPTED):
        raise KeyboardInterrupt(f"stopped and saved: the same call goes on with {folder.path}")
    if code != 0:
        raise ValueError(f"the processes of the run ended with code {code}; what they said is above")
    return Run(folder.path)


def plan(recipe: AnyPath | Recipe, *, data: AnyPath | None = None, **changes: Any) -> Plan:
    """Measure for some seconds what a recipe will take on this machine; nothing is written."""
    return make_plan(make_recipe(recipe, data=data, **changes))


def make_recipe(recipe: AnyPath | Recipe, *, data: AnyPath | None = None, **changes: Any) -> Recipe:
    """A recipe by its name, its file or itself, with some settings changed; texts of one's own are allowed code."""
    changes = _allowed(changes, data=data)
    if isinstance(recipe, os.PathLike):
        recipe = os.fspath(recipe)
    if not isinstance(recipe, (str, Recipe)):
        raise ValueError(f"a recipe is a name, a YAML file or a Recipe, not a {type(recipe).__name__}")
    if isinstance(recipe, str):
        allow_own(recipe)
        recipe = find_recipe(recipe)
    return override(recipe, changes) if changes else recipe


def _allowed(changes: dict[str, Any], *, data: AnyPath | None) -> dict[str, Any]:
    """The changes, the data among them; texts of one's own are allowed code."""
    if data is not None:
        changes["data"] = os.fspath(data)
    allow_own(*(value for value in changes.values() if isinstance(value, str)))
    return changes
