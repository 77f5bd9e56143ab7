"""From JPEG files to uint8 batches, against timm's transforms: one thread, no workers, files in the disk cache.

timm's side is its fastest: Pillow opens and converts, `create_transform(use_prefetcher=True)` leaves uint8 tensors,
`fast_collate` stacks them. Ours is the loader itself. Both interpolate bicubically.

python benchmarks/loader.py [--rounds 5] [--processes 3] [--only 3-Augment] [--images FOLDER]
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import timm.data
import torch
from measure import best_times, in_fresh_process, machine, summarize
from PIL import Image
from timm.data.loader import fast_collate

from vitrail.data.augment import EvaluationView
from vitrail.data.contract import Level
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.data.samples import Transform
from vitrail.data.stored import FileDataset
from vitrail.settings.images import AugmentationSettings

BATCH = 64
NUM_IMAGES = 128
NUM_PHOTOGRAPHS = 16
JPEG_QUALITY = 92

TRAINING: dict[str, object] = {"is_training": True, "color_jitter": None}
THREE: dict[str, object] = {"is_training": True, "auto_augment": "3a", "color_jitter": 0.3}
# With Pillow 13 timm's posterise raises once the noisy magnitude reaches 10: hence 9 without noise on both sides.
RAND: dict[str, object] = {"is_training": True, "auto_augment": "rand-m9-inc1"}
CASES: list[tuple[str, str, dict[str, object], Transform]] = [
    # name, folder, timm's settings, ours
    ("RandomResizedCrop + flip", "images", TRAINING, AugmentationSettings().build(image_size=224)),
    (
        "3-Augment + jitter 0.3",
        "images",
        THREE,
        AugmentationSettings(policy="three", colour_jitter=0.3).build(image_size=224),
    ),
    ("RandAugment 9", "images", RAND, AugmentationSettings(policy="rand", magnitude_noise=0.0).build(image_size=224)),
    ("evaluation 224 / 0.875", "images", {"crop_pct": 0.875}, EvaluationView()),
    ("RandomResizedCrop + flip, 2000 x 1500", "photographs", TRAINING, AugmentationSettings().build(image_size=224)),
    ("evaluation 224 / 0.875, 2000 x 1500", "photographs", {"crop_pct": 0.875}, EvaluationView()),
]


def synthesise(folder: Path, *, number: int, scale: int) -> None:
    """Textured JPEGs of 500 x 375 pixels and the like, times the scale: noise of every size, as photographs have it."""
    folder.mkdir()
    random = np.random.RandomState(0)
    for index in range(number):
        width, height = [(500, 375), (500, 375), (500, 333), (375, 500)][index % 4]
        width, height = scale * width, scale * height
        total = np.zeros((height, width, 3), dtype=np.float32)
        for octave in range(1, 8):
            shape = (height * 2**octave // 512 + 2, width * 2**octave // 512 + 2, 3)
            noise = Image.fromarray(random.randint(0, 256, shape).astype(np.uint8))
            total += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 1.6**octave
        total += random.normal(0, 9, total.shape)
        total = (total - total.mean()) * (50 / total.std()) + 120
        pixels = total.clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:04}.jpg", quality=JPEG_QUALITY)


def load_with_timm(paths: list[Path], settings: dict[str, object]) -> Callable[[], None]:
    """An epoch of timm's batches."""
    transform = timm.data.create_transform(224, use_prefetcher=True, interpolation="bicubic", **settings)

    def load() -> None:
        for start in range(0, len(paths), BATCH):
            images = (Image.open(path).convert("RGB") for path in paths[start : start + BATCH])
            batch, _ = fast_collate([(transform(image), 0) for image in images])
            assert batch.dtype == torch.uint8

    return load


def load_with_vitrail(paths: list[Path], transform: Transform) -> Callable[[], None]:
    """An epoch of ours, each time the next one, so that its random choices differ as timm's do."""
    level = Level(classes=("any",), labels=np.zeros(len(paths), dtype=np.int64))
    names = [path.name for path in paths]
    dataset = FileDataset(name="files", split="train", root=paths[0].parent, paths=names, levels={"label": level})
    loader = ImageLoader(dataset, transform=transform, sampler=Sampler(len(paths), batch_size=BATCH, is_training=False))
    epochs = iter(range(1_000_000))

    def load() -> None:
        for batch in loader.epoch(next(epochs)):
            assert batch.images.dtype == torch.uint8

    return load


def compare(case: int, folder: Path, rounds: int) -> tuple[float, float]:
    """Best seconds per image of timm and of ours."""
    torch.set_num_threads(1)
    _, _, settings, transform = CASES[case]
    paths = sorted(folder.glob("*.jp*g"))
    theirs, ours = best_times(load_with_timm(paths, settings), load_with_vitrail(paths, transform), rounds=rounds)
    return theirs / len(paths), ours / len(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="alternating epochs in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--only", default="", help="only cases whose name starts so")
    parser.add_argument("--images", type=Path, help="a folder of JPEGs of ImageNet's size; default: synthetic ones")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(compare(arguments.case, arguments.images, arguments.rounds)))
        return

    torch.set_num_threads(1)
    print(f"{machine()}; timm {timm.__version__}\n")
    print("| case | KB per file | timm img/s | vitrail img/s | ratio (range) |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        synthesise(Path(made) / "images", number=NUM_IMAGES, scale=1)
        synthesise(Path(made) / "photographs", number=NUM_PHOTOGRAPHS, scale=4)
        for case, (name, kind, _, _) in enumerate(CASES):
            if not name.startswith(arguments.only):
                continue
            folder = arguments.images if arguments.images and kind == "images" else Path(made) / kind
            sizes = [path.stat().st_size for path in folder.glob("*.jp*g")]
            options = ("--case", str(case), "--images", str(folder), "--rounds", str(arguments.rounds))
            times = [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]
            theirs, ours, ratio = summarize(times)
            size = sum(sizes) / len(sizes) / 1000
            print(f"| {name} | {size:.0f} | {1 / theirs:.0f} | {1 / ours:.0f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
