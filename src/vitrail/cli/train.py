"""Train a model: a recipe, the data and a folder for the run; the same command again goes on where it stopped."""

import argparse
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.settings.recipe import Recipe
    from vitrail.training.runs.run_folder import RunFolder

SUMMARY = "train a model with a recipe, or go on with a run"

_INTERRUPTED = 130
_LOGGER = logging.getLogger(__name__)


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
    recipe, folder = _read(arguments)

    from vitrail.training.parallel.launch import is_launched, launch

    if recipe.run.devices * recipe.run.nodes > 1 and not is_launched():
        return launch(["train", arguments.recipe, *arguments.settings], recipe.run)
    return _train(recipe, folder)


def _read(arguments: argparse.Namespace) -> "tuple[Recipe, RunFolder]":
    from vitrail.recipes import find_recipe
    from vitrail.settings.text import change, parse_assignments, read_recipe
    from vitrail.training.runs.run_folder import RunFolder, find_run

    words = arguments.settings
    name = arguments.recipe
    if "=" in name:
        words, name = [name, *words], None
    changes = parse_assignments(words)
    out = changes.pop("out", None)
    if not out:
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
    from vitrail.training.loop.interruption import Interrupted
    from vitrail.training.loop.stages import train
    from vitrail.training.parallel.distributed import joined_world
    from vitrail.training.runs.progress import Progress
    from vitrail.training.runs.report import summarize, write_report

    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    with joined_world(choose_device(recipe.run.device)) as (world, device):
        progress = Progress(is_shown=world.is_main)
        if not world.is_main:
            try:
                with progress.showing_warnings():
                    train(recipe, folder, world=world, device=device, progress=progress)
            except Interrupted:
                return _INTERRUPTED
            return 0
        with _telling_of_the_disk(folder), progress.showing_warnings(), folder.locked():
            recipe, report = folder.begin(recipe), ""
            with folder.logging_to_file():
                try:
                    train(recipe, folder, world=world, device=device, progress=progress)
                except Interrupted:
                    progress.say(f"stopped and saved; to go on: vitrail train out={folder.path}")
                    return _INTERRUPTED
                finally:
                    if folder.metrics_file.is_file():
                        report = _attempt("the report", lambda: f"report: {write_report(folder.path)}")
                summary = _attempt("the summary", lambda: summarize(folder.path))
        print("\n".join(filter(None, (summary, report))))
    return 0


@contextlib.contextmanager
def _telling_of_the_disk(folder: "RunFolder") -> Iterator[None]:
    """One line for a file of the run that can't be written; other errors of the system are not the run folder's."""
    try:
        yield
    except OSError as error:
        if error.filename is None or not Path(error.filename).absolute().is_relative_to(folder.path.absolute()):
            raise
        raise ValueError(
            f"{error.filename} cannot be written or read ({error.strerror}); checkpoints are kept: make room or check "
            "the permissions, then run the same command to go on"
        ) from None


def _attempt(what: str, action: Callable[[], str]) -> str:
    """What the action says; if it fails, a line why, because that must not hide how the run itself ended."""
    try:
        return action()
    except Exception as error:  # a bug too: the log has its traceback
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            _LOGGER.warning("%s could not be written: %s", what, " ".join(str(why).split()), exc_info=True)
        return ""
