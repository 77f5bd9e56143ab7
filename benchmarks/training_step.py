"""A training step (forward, backward, AdamW) of vitrail against timm: speed in one process, memory in fresh ones.

python benchmarks/training_step.py [--rounds 5]
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable

import timm
import torch
from measure import best_times, machine
from torch import nn
from torch.nn import functional

import vitrail

SPEED = [
    # ours, timm's, image size, batch, dtype
    ("cait_xxs24", "cait_xxs24_224", 224, 8, "fp32"),
    ("cait_xxs24", "cait_xxs24_224", 224, 8, "bf16"),
    ("deit_small", "deit_small_patch16_224", 224, 8, "fp32"),
    ("deit_small", "deit_small_patch16_224", 224, 8, "bf16"),
]
MEMORY = ("cait_xxs24", "cait_xxs24_384", 384, 4)


def make_step(model: nn.Module, image_size: int, batch: int, dtype: str) -> Callable[[], None]:
    """One optimisation step on random data; bf16 is autocast over float32 weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    images, targets = torch.randn(batch, 3, image_size, image_size), torch.randint(0, 1000, (batch,))
    model.train()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = functional.cross_entropy(model(images), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def create(which: str, ours: str, peer: str, image_size: int) -> nn.Module:
    if which == "timm":
        return timm.create_model(peer, pretrained=False)
    return vitrail.create_model(ours, image_size=image_size, drop_path=0.0)


def peak_memory(which: str) -> float:
    """Largest resident set, in MiB, of a fresh process that makes two steps."""
    command = [sys.executable, __file__, "--memory-of", which]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report_memory_of(which: str) -> None:
    ours, peer, image_size, batch = MEMORY
    step = make_step(create(which, ours, peer, image_size), image_size, batch, "fp32")
    step()
    step()
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-of", choices=["timm", "vitrail"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.memory_of:
        report_memory_of(arguments.memory_of)
        return
    print(f"{machine()}; timm {timm.__version__}\n")
    print("| model | image | batch | dtype | timm s/step | vitrail s/step | ratio |")
    print("|---|---|---|---|---|---|---|")
    for ours, peer, image_size, batch, dtype in SPEED:
        steps = [
            make_step(create(which, ours, peer, image_size), image_size, batch, dtype) for which in ("timm", "ours")
        ]
        theirs, mine = best_times(*steps, rounds=arguments.rounds)
        print(
            f"| {ours} | {image_size} | {batch} | {dtype} | {theirs:.2f} | {mine:.2f} | {theirs / mine:.2f} |",
            flush=True,
        )
    theirs, mine = peak_memory("timm"), peak_memory("vitrail")
    print(
        f"\nPeak memory of a {MEMORY[0]} step at {MEMORY[2]}, batch {MEMORY[3]}, fp32: "
        f"timm {theirs:.0f} MiB, vitrail {mine:.0f} MiB, ratio {mine / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
