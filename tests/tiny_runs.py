"""A tiny run that has everything in it: moving average, mixing, dropped paths, two micro-batches a step."""

from pathlib import Path

import torch
from rich.console import Console

from vitrail.training.distributed import World
from vitrail.training.loop import train
from vitrail.training.progress import Progress
from vitrail.training.recipe import Recipe
from vitrail.training.run_folder import RunFolder
from vitrail.training.settings import change, parse_assignments

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
    return change(Recipe(), parse_assignments([*SETTINGS, *words]))


def run_in(folder: Path, *words: str) -> RunFolder:
    """Train in this process, silently."""
    run = RunFolder(folder)
    recipe = run.begin(tiny_recipe(*words))
    progress = Progress(is_shown=False, console=Console(quiet=True))
    train(recipe, run, world=World(), device=torch.device("cpu"), progress=progress)
    return run
