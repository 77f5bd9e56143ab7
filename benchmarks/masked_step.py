"""A step of masked image modelling: MAE's form, whose trunk sees the visible patches alone, against the full length.

python benchmarks/masked_step.py [--model deit_tiny] [--image-size 224] [--batch 16] [--rounds 5] [--processes 3]

Both tell the normalised pixels of the same random patches, forward, backward and AdamW. The full length has a token in
the place of a masked patch and a linear layer; MAE's form has a decoder of its own.
"""

import argparse
import json
from collections.abc import Callable

import torch
from measure import CLOCKS, best_times, in_fresh_process, machine, memory_of, summarize

import vitrail
from vitrail.data.draws import Draws
from vitrail.data.patch_masks import RandomMask
from vitrail.heads.masked import DecoderSettings, MaskedModel, at_masked
from vitrail.settings.learning import OptimizerSettings
from vitrail.tasks.masked.targets import PixelTargets
from vitrail.training.loop.optimizer import build_optimizer

FORMS = ("full", "mae")


def make_step(form: str, arguments: argparse.Namespace) -> Callable[[], None]:
    """One optimisation step on random images."""
    trunk = vitrail.create_model(arguments.model, image_size=arguments.image_size, num_classes=0, drop_path=0.0)
    grid = trunk.patch_grid(arguments.image_size, arguments.image_size)
    assert grid is not None
    mask, targets = RandomMask(grid, arguments.share), PixelTargets(grid=grid, patch=arguments.image_size // grid[0])
    decoder = DecoderSettings(
        dim=arguments.decoder_dim, depth=arguments.decoder_depth, num_heads=arguments.decoder_heads
    )
    model = MaskedModel(
        trunk,
        grid=grid,
        num_masked=mask.num_masked,
        num_outputs=targets.num_outputs,
        decoder=decoder if form == "mae" else None,
    ).train()
    optimizer = build_optimizer(model, OptimizerSettings(), lr=1e-5)
    pixels = torch.rand(arguments.batch, 3, arguments.image_size, arguments.image_size)
    masks = torch.stack([torch.from_numpy(mask(Draws(0, place))) for place in range(arguments.batch)])

    def step() -> None:
        wanted = at_masked(targets(pixels), masks, num_masked=mask.num_masked)
        loss = targets.cost(model(pixels, masks), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deit_tiny")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.75, help="of the patches, masked")
    parser.add_argument("--decoder-dim", type=int, default=96)
    parser.add_argument("--decoder-depth", type=int, default=2)
    parser.add_argument("--decoder-heads", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="alternating steps in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of the process")
    parser.add_argument("--part", choices=("times", *FORMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    if arguments.part == "times":
        steps = [make_step(form, arguments) for form in FORMS]
        print(json.dumps(best_times(*steps, rounds=arguments.rounds, clock=arguments.clock)))
        return
    if arguments.part is not None:
        print(json.dumps(memory_of(make_step(arguments.part, arguments))))
        return
    options = [
        word
        for name, value in vars(arguments).items()
        if name not in ("part", "processes")
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    print(f"{machine()}\n")
    times = [in_fresh_process(__file__, *options, "--part", "times") for _ in range(arguments.processes)]
    full, mae, ratio = summarize(times)
    memory = [in_fresh_process(__file__, *options, "--part", form) for form in FORMS]
    print("| model | image | batch | masked | full s/step | MAE s/step | ratio (range) | full GB | MAE GB |")
    print("|---|---|---|---|---|---|---|---|---|")
    print(
        f"| {arguments.model} | {arguments.image_size} | {arguments.batch} | {arguments.share:.0%} | {full:.2f} | "
        f"{mae:.2f} | {ratio} | {memory[0]:.2f} | {memory[1]:.2f} |"
    )


if __name__ == "__main__":
    main()
