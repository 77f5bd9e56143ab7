"""What a new head should start from: `fine_tune` with head_start=random, zero and probe, on few and many images.

python benchmarks/head_start.py --data FOLDER [--per-class 4 16] [--all-epochs 1] [--starts random probe] [--seeds 0]

FOLDER has train/CLASS/* and val/CLASS/*. Of every class so many training images are drawn, the same for all starts. Few
images are seen for 3 epochs, all of them for --all-epochs. Printed are top-1 on val at the end and the minutes.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EPOCHS = 3


def draw(data: Path, folder: Path, *, per_class: int | None, seed: int) -> Path:
    """A folder of links to some of the training images of every class, and to all of val."""
    for split in ("train", "val"):
        for place in sorted((data / split).iterdir()):
            images = sorted(place.iterdir())
            if split == "train" and per_class is not None:
                images = random.Random(f"{seed} {place.name}").sample(images, min(per_class, len(images)))
            (folder / split / place.name).mkdir(parents=True)
            for image in images:
                (folder / split / place.name / image.name).symlink_to(image.resolve())
    return folder


def measure(data: Path, *, start: str, epochs: int, seed: int, words: list[str]) -> tuple[float, float]:
    """Top-1 of a run in percent, and its minutes."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"data={data}", f"out={folder}/run", f"head_start={start}", f"seed={seed}", f"epochs={epochs}"]
        command = [sys.executable, "-m", "vitrail", "train", "fine_tune", *settings, f"evaluation.every={epochs}"]
        done = subprocess.run(
            [*command, *words], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    found = re.search(r"top-1 ([\d.]+) %", done.stdout)
    assert found, done.stdout
    return float(found[1]), (time.monotonic() - began) / 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--per-class", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--all-epochs", type=int, default=1, help="epochs for all images; 0: leave them out")
    parser.add_argument("--starts", nargs="+", default=["random", "auto"], help="values of head_start")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--words", nargs="*", default=[], help="further settings of vitrail train")
    arguments = parser.parse_args()
    print("| images a class | epochs | head_start | seed | top-1, % | minutes |\n|---|---|---|---|---|---|", flush=True)
    cases: list[tuple[int | None, int]] = [(count, EPOCHS) for count in arguments.per_class]
    cases += [(None, arguments.all_epochs)] if arguments.all_epochs else []
    for count, epochs in cases:
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as place:
                data = draw(arguments.data, Path(place) / "data", per_class=count, seed=seed)
                for start in arguments.starts:
                    top1, minutes = measure(data, start=start, epochs=epochs, seed=seed, words=arguments.words)
                    label = "all" if count is None else count
                    print(f"| {label} | {epochs} | {start} | {seed} | {top1:.1f} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
