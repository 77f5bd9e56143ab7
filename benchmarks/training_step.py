"""A training step (forward, backward, AdamW) of vitrail against timm: speed, and peak memory.

python benchmarks/training_step.py [--rounds 5] [--processes 3] [--dtype fp32] [--threads 1] [--clock cpu]

Ours is the step of `vitrail train`: bytes normalised, micro-batches in lanes, one a core, its fused AdamW. timm's is a
plain step of float images with torch's threads and the AdamW of timm's factory. With `--model-only` both are plain
steps with the same plain AdamW, and the model is what differs. With one thread `--clock cpu` measures the time of the
process.
"""

import argparse
import json
import resource
from collections.abc import Callable

import timm
import torch
from loop_step import LoopStep
from measure import CLOCKS, best_times, default_dtypes, in_fresh_process, machine, summarize
from torch import nn
from torch.nn import functional

import vitrail
from vitrail.data.contract import ImageBatch
from vitrail.settings.learning import OptimizerSettings
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.classify.task import Classify
from vitrail.tasks.site import Site
from vitrail.training.loop.optimizer import build_optimizer

CASES = [
    # ours, timm's, image size, batch
    ("cait_xxs24", "cait_xxs24_224", 224, 8),
    ("deit_small", "deit_small_patch16_224", 224, 8),
]
MEMORY_CASE = ("cait_xxs24", "cait_xxs24_384", 384, 4)
SIDES = ("timm", "vitrail")
NUM_CLASSES = 1000


def make_step(
    side: str, case: tuple[str, str, int, int], dtype: str, *, is_model_only: bool = False
) -> Callable[[], None]:
    """One optimisation step on random data; bf16 is autocast over float32 weights."""
    ours, peer, image_size, batch = case
    threads = torch.get_num_threads()
    if side == "vitrail" and not is_model_only:
        return make_loop_step(case, threads=threads, dtype=dtype)
    model: nn.Module
    if side == "timm":
        model = timm.create_model(peer, pretrained=False)
        optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=1e-5)
    else:
        model = vitrail.create_model(ours, image_size=image_size, drop_path=0.0)
        optimizer = build_optimizer(model, OptimizerSettings(name="adamw"), lr=1e-5)
    if is_model_only:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model.train()
    images, targets = torch.randn(batch, 3, image_size, image_size), torch.randint(0, 1000, (batch,))

    def step() -> None:
        torch.set_num_threads(threads)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = functional.cross_entropy(model(images), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def make_loop_step(case: tuple[str, str, int, int], *, threads: int, dtype: str) -> Callable[[], None]:
    """What a run computes in a step, from the bytes that a loader gives."""
    ours, _, image_size, batch = case
    recipe = change(
        ClassifyRecipe(),
        {
            "model.name": ours,
            "data.spec": f"shapes:size=16,count={batch},val=2",
            "image_size": image_size,
            "batch_size": batch,
            "regularisation.drop_path": 0.0,
        },
    )
    assert isinstance(recipe, ClassifyRecipe)
    task = Classify(recipe, Site(num_lanes=threads, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32))
    task.open()
    model = task.make_model({"classes": [str(number) for number in range(NUM_CLASSES)]}).train()
    task.attach(model)
    objective = task.make_objective(total_steps=10_000)
    loop = LoopStep.of(model, task, objective, batch=batch, threads=threads)
    optimizer = recipe.optimizer.build(model, lr=1e-5)
    whole = task.example(batch)
    columns = (
        column.split(loop.sizes) for column in (whole.images, torch.randint(NUM_CLASSES, (batch,)), whole.indices)
    )
    batches = [ImageBatch(*parts) for parts in zip(*columns, strict=True)]

    def step() -> None:
        for _ in loop.add_gradients(batches):
            pass
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak_memory_of(side: str) -> float:
    """Largest resident set, in MiB, of this process after two steps."""
    step = make_step(side, MEMORY_CASE, "fp32")
    step()
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="alternating steps in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument(
        "--dtype", choices=["fp32", "bf16"], action="append", help="default: fp32, and bf16 if the CPU has it"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of the process")
    parser.add_argument("--model-only", action="store_true", help="the same plain AdamW on both sides")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    dtypes = arguments.dtype or default_dtypes()
    if arguments.memory_of:
        print(json.dumps(peak_memory_of(arguments.memory_of)))
        return
    if arguments.case is not None:
        case, only = CASES[arguments.case], arguments.model_only
        steps = [make_step(side, case, dtypes[0], is_model_only=only) for side in SIDES]
        print(json.dumps(best_times(*steps, rounds=arguments.rounds, clock=arguments.clock)))
        return
    print(f"{machine()}; timm {timm.__version__}\n")
    print("| model | image | batch | dtype | timm s/step | vitrail s/step | ratio (range) |")
    print("|---|---|---|---|---|---|---|")
    for number, (ours, _, image_size, batch) in enumerate(CASES):
        for dtype in dtypes:
            options = ["--case", str(number), "--dtype", dtype, "--rounds", str(arguments.rounds)]
            options += ["--threads", str(arguments.threads), "--clock", arguments.clock]
            options += ["--model-only"] if arguments.model_only else []
            times = [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]
            theirs, mine, ratio = summarize(times)
            print(f"| {ours} | {image_size} | {batch} | {dtype} | {theirs:.2f} | {mine:.2f} | {ratio} |", flush=True)
    theirs, mine = (in_fresh_process(__file__, "--memory-of", side) for side in SIDES)
    ours, _, image_size, batch = MEMORY_CASE
    print(
        f"\nPeak memory of a {ours} step at {image_size}, batch {batch}, fp32: "
        f"timm {theirs:.0f} MiB, vitrail {mine:.0f} MiB, ratio {mine / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
