"""Train a model: a recipe, the data and a folder for the run; the same command again goes on where it stopped.

`vitrail train out=RUN epochs=+10 lr=1e-4` goes on with a run that is there, for longer or at another learning rate.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        help="data=SPEC, out=FOLDER, and any setting of the recipe, such as epochs=30 lr=5e-4 optimizer.clip=1",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and say where the report is."""
    return begin(arguments, verb="train")


def begin(arguments: argparse.Namespace, *, verb: str) -> int:
    """Train by the arguments of a verb; `pretrain` takes recipes that need no labels."""
    recipe, folder = _read(arguments)
    if verb == "pretrain" and recipe.needs_labels:
        raise ValueError(f"the recipe {recipe.name} learns from labels: start it with vitrail train")

    from vitrail.training.start import train_here

    again = [verb, arguments.recipe, *arguments.settings, *(["--trust"] if arguments.trust else [])]
    return train_here(recipe, folder, again=again, is_changing="=" in arguments.recipe)


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
