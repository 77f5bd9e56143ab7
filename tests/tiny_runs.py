"""A tiny run that has everything in it: moving average, mixing, dropped paths, two micro-batches a step."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from warm import WarmProcess, start_ranks

from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change, parse_assignments, write_yaml
from vitrail.tasks import find_task
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.contract import Task
from vitrail.tasks.site import Site
from vitrail.training.loop.freezing import freeze
from vitrail.training.loop.stages import train
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.checkpoint import Checkpoints
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder

SETTINGS = (
    "model=cait_xxs24",
    "model.settings={patch_size: 4, dim: 16, depth: 2, num_heads: 2}",
    "data=shapes:size=16,count=48,val=24",
    "image_size=16",
    "batch_size=16",
    "run.micro_batch=8",
    "epochs=3",
    "lr=1e-3",
    "schedule.warmup_epochs=1",
    "augmentation.colour_jitter=0.3",
    "augmentation.repeats=2",
    "blend.mixup=0.8",
    "blend.cutmix=1.0",
    "objective.smoothing=0.1",
    "regularisation.drop_path=0.2",
    "regularisation.ema=0.9",
    "run.device=cpu",
)


def tiny_recipe(*words: str) -> Recipe:
    """A recipe of classification with these settings, then changed; task=NAME keeps what that task knows of them."""
    return change(change(ClassifyRecipe(), parse_assignments(SETTINGS)), parse_assignments(words))


def task_of(recipe: Recipe, *, folder: Path | None = None) -> Task[Any]:
    """The task of a recipe, in this process alone."""
    return find_task(recipe.task)(recipe, Site(seed=recipe.seed, folder=folder))


def model_of(recipe: Recipe, *, num_classes: int, classes: list[str] | None = None) -> Model:
    """The model that a recipe begins with, for that many classes, which may have names."""
    task = task_of(recipe)
    model = task.make_model({"classes": classes or [str(number) for number in range(num_classes)]})
    assert isinstance(model, Model)
    if recipe.model.init is not None:
        task.load_initial(model, recipe.model.init, description={} if classes is None else {"classes": classes})
    freeze(model.trunk, recipe.model.train_only)
    return model


def run_in(folder: Path, *words: str) -> RunFolder:
    """Train in this process, silently."""
    run = RunFolder(folder)
    recipe = run.begin(tiny_recipe(*words))
    progress = Progress(is_shown=False, console=Console(quiet=True))
    train(recipe, run, world=World(), device=torch.device("cpu"), progress=progress)
    return run


def start(folder: Path, *words: str, devices: int = 1) -> WarmProcess:
    """`vitrail train` in a process of its own, which starts others where `devices` are several."""
    return WarmProcess([*_command(folder, *words), f"devices={devices}"], environment={"OMP_NUM_THREADS": "1"})


def start_two(folder: Path, *words: str) -> list[WarmProcess]:
    """`vitrail train` in two processes that train together, as a launcher of another program would start them."""
    return start_ranks([*_command(folder, *words), "devices=2"], num_ranks=2)


def run_two(folder: Path, *words: str) -> None:
    """`vitrail train` in two processes that train together, to its end."""
    ranks = start_two(folder, *words)
    said = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "".join(said)


def _command(folder: Path, *words: str) -> list[str]:
    recipe = folder.parent / f"{folder.name}.yaml"
    recipe.write_text(write_yaml(tiny_recipe("run.threads=1", *words)))
    return ["train", str(recipe), f"out={folder}"]


def wait_for_step(process: WarmProcess, folder: Path, step: int) -> None:
    """Until a checkpoint of that step or a later one is there."""
    checkpoints = Checkpoints(folder / "checkpoints")
    while not checkpoints.steps() or checkpoints.steps()[-1] < step:
        if process.poll() is not None:
            output, _ = process.communicate()
            pytest.fail(f"the run ended early: {output}")
        time.sleep(0.005)


def finish(process: WarmProcess) -> str:
    """Until it has ended well; what it said."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output
