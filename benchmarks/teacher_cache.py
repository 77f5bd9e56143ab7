"""An epoch of a student that asks its teacher at every step, against one that finds all answers in a warm cache.

Both sides are whole runs of one epoch, with the evaluation of a few images at its end; the warm-up run fills the cache.
The teachers' weights are random: what they say takes as long as if they had learnt it. Neither side mixes images,
so that the teacher sees the same ones.

python benchmarks/teacher_cache.py [--rounds 3] [--processes 3] [--images 512]
"""

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import best_times, in_fresh_process, machine, summarize
from PIL import Image
from rich.console import Console

import vitrail
from vitrail.settings.text import change, parse_assignments
from vitrail.tasks.distill.settings import DistillRecipe
from vitrail.training.loop.stages import train
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder

CASES = [
    # student, teacher
    ("deit_tiny", "deit_small"),
    ("deit_tiny", "deit_base"),
    ("deit_tiny", "timm/regnety_040"),
]
IMAGE_SIZE = 112
NUM_CLASSES = 8
NUM_VAL = 16


def synthesise(folder: Path, *, num_images: int) -> Path:
    """JPEGs of 160 x 128 pixels in class folders."""
    random = np.random.RandomState(0)
    for split, number in (("train", num_images), ("val", NUM_VAL)):
        for index in range(number):
            place = folder / split / f"class {index % NUM_CLASSES}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = random.randint(0, 256, (16, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).resize((160, 128)).save(place / f"{index:05}.jpg")
    return folder


def make_epoch(case: tuple[str, str], folder: Path, *, data: Path, cache: str) -> Callable[[], None]:
    """A run of one epoch in a new folder; `cache` is a value of teacher.cache."""
    student, teacher = case
    place = folder / "teacher"
    if not place.exists():
        vitrail.save_model(vitrail.create_model(teacher, num_classes=NUM_CLASSES, image_size=IMAGE_SIZE), place)
    words = (
        f"model={student}",
        f"data={data}",
        f"image_size={IMAGE_SIZE}",
        "batch_size=64",
        "run.micro_batch=64",
        "epochs=1",
        "lr=1e-4",
        f"teacher={place}",
        f"teacher.cache={cache}",
        f"teacher.cache_folder={folder / 'answers'}",
    )
    recipe = change(DistillRecipe(), parse_assignments(words))

    def epoch() -> None:
        with tempfile.TemporaryDirectory() as run_folder:
            run = RunFolder(Path(run_folder) / "run")
            progress = Progress(is_shown=False, console=Console(quiet=True))
            train(run.begin(recipe), run, world=World(), device=torch.device("cpu"), progress=progress)

    return epoch


def measure(case: tuple[str, str], *, num_images: int, rounds: int) -> tuple[float, float]:
    """Best seconds of an epoch, asking and with a warm cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = synthesise(folder / "images", num_images=num_images)
        asking, cached = (make_epoch(case, folder, data=data, cache=cache) for cache in ("null", "views:1"))
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            return best_times(asking, cached, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternating epochs in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--images", type=int, default=512, help="of an epoch")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(CASES[arguments.case], num_images=arguments.images, rounds=arguments.rounds)))
        return
    print(f"{machine()}; {arguments.images} images of {IMAGE_SIZE} pixels\n")
    print("| student | teacher | asking s/epoch | warm cache s/epoch | ratio (range) |")
    print("|---|---|---|---|---|")
    for case, (student, teacher) in enumerate(CASES):
        options = ("--case", str(case), "--rounds", str(arguments.rounds), "--images", str(arguments.images))
        times = [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]
        asking, cached, ratio = summarize(times)
        print(f"| {student} | {teacher} | {asking:.1f} | {cached:.1f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
