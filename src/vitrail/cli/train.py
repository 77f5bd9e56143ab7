"""Train a model: a recipe, the data and a folder for the run; the same command again goes on where it stopped."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.training.recipe import Recipe
    from vitrail.training.run_folder import RunFolder

SUMMARY = "train a model with a recipe, or go on with a run"

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail train` takes."""
    parser.add_argument(
        "recipe", help="a name of `vitrail recipes` or a YAML file; or out=RUN alone to go on with a run"
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="data=SPEC, out=FOLDER, and any setting of the recipe, such as epochs=30 lr=5e-4 optimizer.clip=1",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and say where the report is."""
    recipe, folder = _read(arguments)

    from vitrail.training.launch import is_launched, launch

    if recipe.run.devices * recipe.run.nodes > 1 and not is_launched():
        return launch(["train", arguments.recipe, *arguments.settings], recipe.run)
    return _train(recipe, folder)


def _read(arguments: argparse.Namespace) -> "tuple[Recipe, RunFolder]":
    from vitrail.recipes import find_recipe
    from vitrail.training.run_folder import RunFolder, find_run
    from vitrail.training.settings import change, parse_assignments, read_recipe

    words = arguments.settings
    name = arguments.recipe
    if "=" in name:
        words, name = [name, *words], None
    changes = parse_assignments(words)
    out = changes.pop("out", None)
    if out is None:
        raise ValueError("no folder given for the run: add out=FOLDER, such as out=runs/first")
    folder = RunFolder(Path(str(out)))
    if name is not None:
        recipe = find_recipe(name)
    else:
        if not folder.is_begun:
            raise ValueError(
                f"there is no run in {out} to go on with: name a recipe first, such as `vitrail train small`"
            )
        recipe = read_recipe(find_run(folder.path).recipe_file)
    return change(recipe, changes), folder


def _train(recipe: "Recipe", folder: "RunFolder") -> int:
    import torch

    from vitrail.evaluation.predict import choose_device
    from vitrail.training.distributed import joined_world
    from vitrail.training.interruption import Interrupted
    from vitrail.training.loop import train
    from vitrail.training.progress import Progress
    from vitrail.training.report import summarize

    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    with joined_world(choose_device(recipe.run.device)) as (world, device):
        progress = Progress(is_shown=world.is_main)
        if not world.is_main:
            try:
                train(recipe, folder, world=world, device=device, progress=progress)
            except Interrupted:
                return _INTERRUPTED
            return 0
        recipe = folder.begin(recipe)
        folder.log_to_file()
        with folder.locked():
            try:
                train(recipe, folder, world=world, device=device, progress=progress)
            except Interrupted:
                progress.say(f"stopped and saved; to go on: vitrail train out={folder.path}")
                return _INTERRUPTED
            finally:
                report = _report(folder) if folder.metrics_file.is_file() else ""
        print(summarize(folder.path))
        print(report)
    return 0


def _report(folder: "RunFolder") -> str:
    """Write the report; a disk that is full must not hide why a run ended."""
    from vitrail.training.report import write_report

    try:
        return f"report: {write_report(folder.path)}"
    except OSError as error:
        return f"the report could not be written: {error.strerror}"
