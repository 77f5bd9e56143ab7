"""Train a model: a recipe, the data and a folder for the run; the same command again goes on where it stopped.

`vitrail train out=RUN epochs=+10 lr=1e-4` goes on with a run that is there, for longer or at another learning rate.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.settings.launching import SlurmSettings
    from vitrail.settings.recipe import Recipe
    from vitrail.training.runs.run_folder import RunFolder

SUMMARY = "train a model with a recipe, or go on with a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail train` takes."""
    parser.add_argument(
        "recipe",
        help="a name of `vitrail recipes`, a YAML file or module:function; or out=RUN alone to go on with a run",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="data=SPEC, out=FOLDER, and any setting of the recipe, such as epochs=30 lr=5e-4 optimizer.clip=1; "
        "launcher=slurm submits a job, by slurm.partition=NAME slurm.minutes=1440 and their like",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and say where the report is."""
    return begin(arguments, verb="train")


def begin(arguments: argparse.Namespace, *, verb: str) -> int:
    """Train by the arguments of a verb; `pretrain` takes recipes that need no labels."""
    from vitrail.settings.launching import take_launcher

    launcher, job, words = take_launcher([arguments.recipe, *arguments.settings])
    arguments.recipe, arguments.settings = (words[0], words[1:]) if words else ("", [])
    recipe, folder = _read(arguments)
    if verb == "pretrain" and recipe.needs_labels:
        raise ValueError(f"the recipe {recipe.name} learns from labels: start it with vitrail train")

    again = [verb, arguments.recipe, *arguments.settings, *(["--trust"] if arguments.trust else [])]
    if launcher != "here":
        return _submit(again, recipe, folder, launcher=launcher, job=job)

    from vitrail.training.start import train_here

    return train_here(recipe, folder, again=again, is_changing="=" in arguments.recipe)


def _submit(again: list[str], recipe: "Recipe", folder: "RunFolder", *, launcher: str, job: "SlurmSettings") -> int:
    """Hand the command to a scheduler, and say how the job is followed and ended."""
    from vitrail.training.parallel.scheduled import submit

    if any(word.partition("=")[2].startswith("+") for word in again):
        raise ValueError("a job may be started several times, and would add epochs=+N each time: give epochs=N")
    submitted = submit(again, out=folder.path, launcher=launcher, job=job, run=recipe.run)
    print(f"job {submitted.job_id} trains into {folder.path}; what it says: {submitted.paths.stdout}")
    if launcher == "slurm":
        print(f"squeue --job {submitted.job_id} shows it, scancel {submitted.job_id} ends it")
        return 0
    submitted.wait()
    return 0 if submitted.state == "FINISHED" else 1


def _read(arguments: argparse.Namespace) -> "tuple[Recipe, RunFolder]":
    from vitrail.recipes import check_runs, find_recipe
    from vitrail.settings.overriding import override
    from vitrail.settings.text import parse_assignments
    from vitrail.training.runs.changed_recipe import refuse_additions
    from vitrail.training.runs.run_folder import RunFolder

    words = arguments.settings
    name = arguments.recipe
    if "=" in name:
        words, name = [name, *words], None
    changes = parse_assignments(words)
    out = changes.pop("out", None)
    if not out:
        raise ValueError("no folder given for the run: add out=FOLDER, such as out=runs/first")
    folder = RunFolder(Path(str(out)))
    if name is None:
        return folder.read_recipe_with(changes), folder
    refuse_additions(changes)
    recipe = override(find_recipe(name), changes)
    if not folder.has_progress:
        check_runs(recipe)
    return recipe, folder
