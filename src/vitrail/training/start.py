"""Starting a run: here or in several processes, with its folder locked, its log, its report and its summary."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from vitrail.evaluation.predict import choose_device
from vitrail.settings.own import ENVIRONMENT_VARIABLE, allowed_texts
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import write_yaml
from vitrail.training.loop.interruption import Interrupted
from vitrail.training.loop.stages import train
from vitrail.training.parallel.distributed import joined_world
from vitrail.training.parallel.launch import PREEMPTED, is_launched, launch
from vitrail.training.runs.checkpoint import CheckpointError
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.report import summarize, write_report
from vitrail.training.runs.run_folder import RunFolder

INTERRUPTED = 130  # the exit code of what Ctrl-C has stopped
_LOGGER = logging.getLogger(__name__)


def train_here(
    recipe: Recipe, folder: RunFolder, *, again: list[str] | None, is_changing: bool = False, is_told: bool = True
) -> int:
    """Train in this process, or in several that it starts by the command `again`; the exit code.

    How the run went is printed where `is_told`. With `is_changing` the run in the folder goes on with this recipe, if
    that is sound.
    """
    if recipe.run.devices * recipe.run.nodes > 1 and not is_launched():
        if is_changing:  # its processes make the change: what is not sound is told once, before they start
            with _telling_of_the_disk(folder), folder.locked():
                RunFolder(folder.path).change(recipe)
        if again is not None:
            return launch(again, recipe.run)
        if "SLURM_STEP_NUM_TASKS" in os.environ:
            raise ValueError("under srun a run of several processes is started by `vitrail train`, not from Python")
        with tempfile.TemporaryDirectory() as place, _own_code_for_children():
            file = Path(place) / "recipe.yaml"
            file.write_text(write_yaml(recipe), encoding="utf-8")
            return launch(["train", str(file), f"out={folder.path}"], recipe.run)
    threads = torch.get_num_threads()
    try:
        return _train(recipe, folder, is_changing=is_changing, is_told=is_told)
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _own_code_for_children() -> Iterator[None]:
    """Processes that are started inside the block may import what this one may."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = allowed_texts()
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT_VARIABLE]
        else:
            os.environ[ENVIRONMENT_VARIABLE] = before


def _train(recipe: Recipe, folder: RunFolder, *, is_changing: bool, is_told: bool) -> int:
    with joined_world(choose_device(recipe.run.device)) as (world, device):
        progress = Progress(is_shown=world.is_main)
        if not world.is_main:
            try:
                with progress.showing_warnings():
                    train(recipe, folder, world=world, device=device, progress=progress)
            except Interrupted as stop:
                return PREEMPTED if stop.is_terminated else INTERRUPTED
            return 0
        with _telling_of_the_disk(folder), progress.showing_warnings(), _leaving_no_empty(folder), folder.locked():
            if is_changing:
                folder.change(recipe)
            recipe, report = folder.begin(recipe), ""
            with folder.logging_to_file():
                try:
                    train(recipe, folder, world=world, device=device, progress=progress)
                except Interrupted as stop:
                    progress.say(f"stopped and saved; to go on: vitrail train out={folder.path}")
                    return PREEMPTED if stop.is_terminated else INTERRUPTED
                finally:
                    if folder.metrics_file.is_file() and folder.is_present:
                        report = _attempt("the report", lambda: f"report: {write_report(folder.path)}")
                summary = _attempt("the summary", lambda: summarize(folder.path))
                folder.check_present()
        if is_told:
            print("\n".join(filter(None, (summary, report))))
    return 0


@contextlib.contextmanager
def _telling_of_the_disk(folder: RunFolder) -> Iterator[None]:
    """One line for a file of the run that can't be written; other errors of the system are not the run folder's."""
    try:
        yield
    except CheckpointError:
        folder.check_present()
        raise
    except OSError as error:
        folder.check_present()
        if error.filename is None or not Path(error.filename).absolute().is_relative_to(folder.path.absolute()):
            raise
        raise ValueError(
            f"{error.filename} cannot be written or read ({error.strerror}); checkpoints are kept: make room or check "
            "the permissions, then run the same command to go on"
        ) from None


@contextlib.contextmanager
def _leaving_no_empty(folder: RunFolder) -> Iterator[None]:
    """A recipe or data that can't be used leaves no folder behind."""
    try:
        yield
    except ValueError:
        folder.discard()
        raise


def _attempt(what: str, action: Callable[[], str]) -> str:
    """What the action says; if it fails, a line why, because that must not hide how the run itself ended."""
    try:
        return action()
    except Exception as error:  # a bug too: the log has its traceback
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            _LOGGER.warning("%s could not be written: %s", what, " ".join(str(why).split()), exc_info=True)
        return ""
