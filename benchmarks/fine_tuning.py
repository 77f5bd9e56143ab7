"""Fine-tuning DeiT-Ti at 112 pixels: what training a part of it saves, and our step against a plain script with timm.

python benchmarks/fine_tuning.py [--data FOLDER] [--rounds 5] [--processes 3]

Without --data only the parts are measured. Linux only: it reads the process's memory from /proc.
"""

import argparse
import ctypes
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import timm
import torch
from measure import best_times, in_fresh_process, machine, summarize
from memory import resident
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import vitrail
from vitrail.data.blend import IMAGENET_MEAN, IMAGENET_STD, Normalize
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.models.contract import Model
from vitrail.settings.images import AugmentationSettings
from vitrail.settings.learning import OptimizerSettings
from vitrail.training.loop.freezing import freeze

PARTS = ("all", "attention", "ffn", "head")
SIZE, BATCH, NUM_CLASSES, MICRO_BATCH = 112, 64, 37, 16


def student(part: str) -> Model:
    """DeiT-Ti of which only a part learns."""
    model = vitrail.create_model("deit_tiny", image_size=SIZE, num_classes=NUM_CLASSES, drop_path=0.1)
    freeze(model, part)
    return model.train()


def make_step(part: str) -> Callable[[], None]:
    """One step on noise, in micro-batches as the training loop takes them on this kind of CPU."""
    model = student(part)
    optimizer = OptimizerSettings(lr=1e-5).build(model)
    images, targets = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, NUM_CLASSES, (BATCH,))

    def step() -> None:
        for place in range(0, BATCH, MICRO_BATCH):
            part_of_batch = slice(place, place + MICRO_BATCH)
            functional.cross_entropy(model(images[part_of_batch]), targets[part_of_batch]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds_of_parts(rounds: int) -> dict[str, float]:
    """Best seconds of a step for each part, the parts by turns."""
    steps = {part: make_step(part) for part in PARTS}
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(rounds + 1):
        for part, step in steps.items():
            start = time.perf_counter()
            step()
            times[part].append(time.perf_counter() - start)
    return {part: min(values[1:]) for part, values in times.items()}


def memory_of(part: str) -> float:
    """MiB that two steps add to this process at their peak: gradients, optimizer state and activations of the batch."""
    model = student(part)
    images, targets = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, NUM_CLASSES, (BATCH,))
    with torch.inference_mode():
        model(images[:1])
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    optimizer = OptimizerSettings(lr=1e-5).build(model)
    for _ in range(2):
        functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (resident("VmHWM") - before) / 1024


def our_steps(folder: str) -> Callable[[], None]:
    """Steps on the folder with our loader, model and optimizer."""
    data = vitrail.open_dataset(folder, "train")
    augmentation = AugmentationSettings(scale=(0.35, 1.0), colour_jitter=0.3).build(image_size=SIZE)
    sampler = Sampler(len(data), batch_size=BATCH, num_micro_batches=BATCH // MICRO_BATCH)
    loader, normalize = ImageLoader(data, transform=augmentation, sampler=sampler), Normalize()
    batches = itertools.chain.from_iterable(loader.epoch(number) for number in itertools.count())
    model = student("all")
    optimizer = OptimizerSettings(lr=2e-4).build(model)

    def step() -> None:
        for batch in itertools.islice(batches, BATCH // MICRO_BATCH):
            logits = model(normalize(batch.images))
            loss = functional.cross_entropy(logits, batch.targets, label_smoothing=0.1)
            (loss * MICRO_BATCH / BATCH).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def their_steps(folder: str) -> Callable[[], None]:
    """Steps on the folder as a plain script makes them: torchvision's transforms, timm's model, torch's AdamW."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.35, 1.0), interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    data = datasets.ImageFolder(str(Path(folder) / "train"), transform)
    batches = _endless(DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True))
    model = timm.create_model("deit_tiny_patch16_224", img_size=SIZE, num_classes=NUM_CLASSES, drop_path_rate=0.1)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.05)

    def step() -> None:
        images, targets = next(batches)
        loss = functional.cross_entropy(model(images), targets, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _endless(loader: DataLoader) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a folder with train/CLASS/*.jpg, of 37 classes")
    parser.add_argument("--rounds", type=int, default=5, help="steps in a process, by turns; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--measure", choices=("parts", "steps"), help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.memory_of:
        print(json.dumps(memory_of(arguments.memory_of)))
        return
    if arguments.measure == "parts":
        print(json.dumps(seconds_of_parts(arguments.rounds)))
        return
    if arguments.measure == "steps":
        sides = their_steps(arguments.data), our_steps(arguments.data)
        print(json.dumps(best_times(*sides, rounds=arguments.rounds)))
        return
    rounds = ("--rounds", str(arguments.rounds))
    print(f"{machine()}; timm {timm.__version__}\n\nDeiT-Ti at {SIZE}, batch {BATCH}, fp32\n")
    print("| trained | parameters | s/step | over all | MiB a step adds | over all |")
    print("|---|---|---|---|---|---|")
    runs = [in_fresh_process(__file__, "--measure", "parts", *rounds) for _ in range(arguments.processes)]
    seconds = {part: statistics.median(run[part] for run in runs) for part in PARTS}
    added = {part: in_fresh_process(__file__, "--memory-of", part) for part in PARTS}
    for part in PARTS:
        count = sum(value.numel() for value in student(part).parameters() if value.requires_grad)
        print(
            f"| {part} | {count / 1e6:.2f} M | {seconds[part]:.3f} | {seconds[part] / seconds['all']:.2f} "
            f"| {added[part]:.0f} | {added[part] / added['all']:.2f} |"
        )
    if arguments.data:
        options = ("--measure", "steps", "--data", arguments.data, *rounds)
        times = [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]
        theirs, mine, ratio = summarize(times)
        print(f"\nA whole step, reading included: timm {theirs:.2f} s, vitrail {mine:.2f} s, ratio {ratio}")


if __name__ == "__main__":
    main()
