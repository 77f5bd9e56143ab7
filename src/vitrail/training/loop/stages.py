"""How a run proceeds: stage after stage, from the newest checkpoint on."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from vitrail.evaluation.predict import choose_precision
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import stage_of
from vitrail.tasks import find_task
from vitrail.tasks.contract import Initial, Task
from vitrail.tasks.site import Site
from vitrail.training.loop.acceleration import float32_products
from vitrail.training.loop.interruption import StopSignal
from vitrail.training.loop.stage import Stage
from vitrail.training.loop.surroundings import Surroundings
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.checkpoint import Checkpoints, load_run_state
from vitrail.training.runs.checkpoint_writer import CheckpointWriter
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder
from vitrail.training.runs.trackers import Trackers, open_trackers

_UNCHECKED = ("num_val",)  # of task.json: what a run that goes on may find changed


def train(recipe: Recipe, folder: RunFolder, *, world: World, device: torch.device, progress: Progress) -> None:
    """Train every stage of the recipe, from the newest checkpoint of the folder on if there is one."""
    checkpoints = Checkpoints(folder.checkpoints, keep_last=recipe.run.keep)
    newest = checkpoints.newest(world)
    state: dict[str, Any] = {}
    if newest:  # and whole; of one in parts, each of several processes reads its own
        is_divided = world.num_ranks > 1 and newest.is_dir()
        state = load_run_state(newest, num_stages=recipe.num_stages, is_divided=is_divided)
        state["file"] = newest
    first, step = state.get("stage", 0), state.get("step", 0)
    if world.is_main:
        folder.forget_metrics(stage=first, step=step)
    initial: Initial | None = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(float32_products(recipe.run))
        stop = stack.enter_context(StopSignal())
        trackers = Trackers()
        if world.is_main:
            trackers = stack.enter_context(open_trackers(recipe, folder, stage=first, step=step))
        around = Surroundings(
            folder=folder,
            writer=stack.enter_context(CheckpointWriter(checkpoints)),
            world=world,
            device=device,
            dtype=choose_precision(recipe.run.precision, device),
            progress=progress,
            stop=stop,
            trackers=trackers,
            num_cores=recipe.run.threads or torch.get_num_threads(),
        )
        for number in range(first, recipe.num_stages):  # what is wrong shows before days of training
            part = stage_of(recipe, number)
            if part.regularisation.early_stop is not None and not part.data.is_measured:
                raise ValueError("regularisation.early_stop needs evaluations, and data.val=none has none: drop one")
            task = find_task(part.task)(part, Site(device=device, dtype=around.dtype, stage=number))
            task.check()
            if number > first:  # the first is opened next
                _open_later(task, number)
        for number in range(first, recipe.num_stages):
            torch.set_num_threads(around.num_cores)  # until the stage has planned its steps
            stage = Stage(stage_of(recipe, number), number=number, around=around)
            if world.is_main:
                note_data(folder, stage.description, before=state.get("data", {}))
            stage.prepare(state or None, initial=initial)
            initial = None
            if world.is_main and (said := folder.go_on()):
                progress.say(said)
            state.clear()  # a checkpoint is as large as the run itself: what is left of it goes
            stage.run()
            around.writer.wait()
            initial = stage.finish()
            if world.is_main and number == recipe.num_stages - 1:
                stage.write_model(initial.weights)


def _open_later(task: Task[Any], number: int) -> None:
    """Open the data of a stage that comes later, whose faults would otherwise show after all stages before it."""
    try:
        task.open()
    except ValueError as error:
        raise ValueError(f"stages.{number} (task={task.recipe.task}): {error}") from None


def note_data(folder: RunFolder, description: Mapping[str, Any], *, before: Mapping[str, Any]) -> None:
    """Write down what the task says of its data. A stage goes on with what it began with, or labels would be others."""
    for key in before.keys() & description.keys() - set(_UNCHECKED):
        if before[key] != description[key]:
            raise ValueError(
                f"{folder.path} was begun with other data (its {key.replace('num_', 'number of samples in ')} "
                "changed): restore the data, or begin a new run with init=" + str(folder.path)
            )
    folder.write_json(folder.task_file, description)
