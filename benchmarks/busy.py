"""How much of its speed the real loop keeps beside one busy process a core, and what torch's own threads keep.

Each case is measured idle and busy in turn, several times, and the best of each counts: `vitrail train` in a process of
its own, by the speed in its metrics.jsonl; a plain loop with torch's threads that reads the same images between the
steps of the same model; `vitrail predict` on a folder, by the difference between many and few images.

python benchmarks/busy.py [--rounds 2]
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from measure import machine
from PIL import Image
from torch.nn import functional

import vitrail
from vitrail.data.blend import Normalize
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.recipes import find_recipe
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.overriding import override

RECIPES = {
    "quickstart": ("small", "data=fashion", "steps=640", "evaluation.every=100"),
    "deit_tiny 112": (
        "fine_tune",
        "data=shapes:size=112,count=640,val=64",
        "init=null",
        "steps=24",
        "evaluation.every=100",
    ),
}
FEW, MANY = 64, 448  # images of predict


@contextlib.contextmanager
def busy_cores(is_busy: bool) -> Iterator[None]:
    """One process a core that does nothing but count."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1) if is_busy
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def vitrail_command(*words: str) -> None:
    """The command line in a process of its own."""
    subprocess.run(
        [sys.executable, "-m", "vitrail", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def train_speed(words: tuple[str, ...]) -> float:
    """Images a second of training, the median of what the run notes every few seconds."""
    with tempfile.TemporaryDirectory() as place:
        vitrail_command("train", *words, f"out={place}/run")
        lines = [json.loads(line) for line in (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["images_per_second"] for line in lines if line["kind"] == "train"][1:]
    return statistics.median(speeds)


def plain_speed(words: tuple[str, ...]) -> float:
    """Images a second of a loop with torch's threads that reads, then steps; in a process of its own."""
    command = [sys.executable, __file__, "--plain", json.dumps(words)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def run_plain(words: list[str]) -> float:
    """What `plain_speed` runs."""
    recipe = override(find_recipe(words[0]), dict(word.split("=", 1) for word in words[1:2]))
    assert isinstance(recipe, ImageRecipe)
    train, _ = recipe.data.open()
    loader = ImageLoader(
        train,
        transform=recipe.augmentation.build(image_size=recipe.image_size),
        sampler=Sampler(len(train), batch_size=recipe.batch_size, seed=0),
    )
    model = vitrail.create_model(
        recipe.model.name, image_size=recipe.image_size, num_classes=len(loader.classes), **recipe.model.settings
    )
    normalize = Normalize(model.preprocessing.mean, model.preprocessing.std)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)
    times: list[float] = []
    batches = (batch for epoch in itertools.count() for batch in loader.epoch(epoch))
    begun = time.perf_counter()
    while time.perf_counter() - begun < 20.0 or len(times) < 5:
        start = time.perf_counter()
        batch = next(batches)
        functional.cross_entropy(model(normalize(batch.images)), batch.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return recipe.batch_size / statistics.median(times[2:])


def predict_speed(folder: Path) -> float:
    """Images a second of `vitrail predict`, without its start."""
    seconds = {}
    for count in (FEW, MANY):
        files = [str(path) for path in sorted(folder.glob("*.jpg"))[:count]]
        start = time.perf_counter()
        vitrail_command("predict", "deit_tiny", "init=random", *files)
        seconds[count] = time.perf_counter() - start
    return (MANY - FEW) / (seconds[MANY] - seconds[FEW])


def measure(name: str, speed: Callable[[], float], *, rounds: int) -> None:
    """Print a row: the best speed idle and busy."""
    best = {False: 0.0, True: 0.0}
    for _ in range(rounds):
        for is_busy in best:
            with busy_cores(is_busy):
                best[is_busy] = max(best[is_busy], speed())
    print(f"| {name} | {best[False]:.1f} | {best[True]:.1f} | {best[True] / best[False]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        print(run_plain(json.loads(arguments.plain)))
        return
    print(f"{machine()}, {os.cpu_count()} busy processes\n\n| what | idle images/s | busy | kept |\n|---|---|---|---|")
    for name, words in RECIPES.items():
        measure(f"{name}, `vitrail train`", functools.partial(train_speed, words), rounds=arguments.rounds)
        measure(f"{name}, plain loop, torch's threads", functools.partial(plain_speed, words), rounds=arguments.rounds)
    with tempfile.TemporaryDirectory() as place:
        generator = np.random.default_rng(0)
        for number in range(MANY):
            pixels = np.kron(
                generator.integers(0, 256, (12, 12, 3), dtype=np.uint8), np.ones((32, 32, 1), dtype=np.uint8)
            )
            Image.fromarray(pixels).save(Path(place) / f"{number:04}.jpg")
        speed = functools.partial(predict_speed, Path(place))
        measure("deit_tiny 224, `vitrail predict`", speed, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
