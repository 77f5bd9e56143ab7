"""How a run proceeds: stage after stage, from the newest checkpoint on."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from vitrail.settings.recipe import Recipe
from vitrail.settings.text import stage_of
from vitrail.tasks.embed.clustering import cluster_data
from vitrail.training.loop import build
from vitrail.training.loop.interruption import StopSignal
from vitrail.training.loop.stage import Stage
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder
from vitrail.training.runs.trackers import Trackers, open_trackers


def train(recipe: Recipe, folder: RunFolder, *, world: World, device: torch.device, progress: Progress) -> None:
    """Train every stage of the recipe, from the newest checkpoint of the folder on if there is one."""
    checkpoints = Checkpoints(folder.checkpoints, keep_last=recipe.run.keep)
    newest = world.share(checkpoints.newest() if world.is_main else None)
    state = load_checkpoint(newest) if newest else None
    first = state["stage"] if state else 0
    if world.is_main:
        folder.forget_metrics(stage=first, step=state["step"] if state else 0)
    initial: build.Initial | None = None
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        trackers = Trackers()
        if world.is_main:
            step = state["step"] if state else 0
            trackers = stack.enter_context(open_trackers(recipe, folder, stage=first, step=step))
        for number in range(first, recipe.num_stages):
            part = stage_of(recipe, number)
            data = cluster_data(
                build.open_data(part),
                part,
                file=folder.clusters_file(number),
                world=world,
                device=device,
                progress=progress,
            )
            if world.is_main:
                note_data(folder, data, before=state["data"] if state else None)
            stage = Stage(
                part,
                number=number,
                data=data,
                folder=folder,
                checkpoints=checkpoints,
                world=world,
                device=device,
                progress=progress,
                stop=stop,
                trackers=trackers,
            )
            stage.prepare(state, initial=initial)
            stage.run()
            weights, state = stage.final_weights(), None
            initial = build.Initial(weights, stage.model.grid, data.labels.classes)
            if world.is_main and number == recipe.num_stages - 1:
                stage.write_model(weights)


def note_data(folder: RunFolder, data: build.Data, *, before: Mapping[str, Any] | None) -> None:
    """Write down the classes. A stage goes on with those and the images it began with, or labels would be others."""
    description = data.describe()
    for key in ("classes", "num_train") if before is not None else ():
        if before is not None and before[key] != description[key]:
            raise ValueError(
                f"{folder.path} was begun with other data (its {key.replace('num_', 'number of images in ')} "
                "changed): restore the data, or begin a new run with init=" + str(folder.path)
            )
    folder.write_json(folder.classes_file, description)
