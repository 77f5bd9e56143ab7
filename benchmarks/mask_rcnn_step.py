"""Mask R-CNN of vitrail against timm's backbone, the same neck written plainly and torchvision's Mask R-CNN.

python benchmarks/mask_rcnn_step.py [--size 512] [--batch 2] [--rounds 3] [--processes 3] [--threads 2] [--clock wall]

A training step (AdamW included) and inference up to masks in the image, then peak memory of each. Both sides have
DeiT-Ti, maps behind blocks 3, 5, 7 and 11, an FPN of 256 and torchvision's defaults.
"""

import argparse
import json
import resource
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate

import timm
import torch
from loop_step import LoopStep
from measure import CLOCKS, best_times, in_fresh_process, machine, summarize
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from vitrail.data.dense.contract import ObjectBatch
from vitrail.inference.folding import fold
from vitrail.settings.text import change
from vitrail.tasks.detect.asking import ask
from vitrail.tasks.detect.objective import to_target
from vitrail.tasks.detect.settings import DetectRecipe
from vitrail.tasks.detect.task import Detect
from vitrail.tasks.site import Site

NUM_CLASSES = 6  # of shapes: of so few an untrained model is sure enough to answer with all its objects
SIDES, WORKS = ("plain", "vitrail"), ("training", "inference")
Call = Callable[[], object]


class PlainBackbone(nn.Module):
    """timm's DeiT-Ti, XCiT's neck and torchvision's FPN."""

    out_channels = 256

    def __init__(self, size: int, dim: int = 192) -> None:
        super().__init__()
        self.trunk = timm.create_model("deit_tiny_patch16_224", img_size=size, num_classes=0, dynamic_img_size=True)
        self.neck = nn.ModuleList(
            [
                nn.Sequential(
                    nn.ConvTranspose2d(dim, dim, 2, stride=2),
                    nn.BatchNorm2d(dim),
                    nn.GELU(),
                    nn.ConvTranspose2d(dim, dim, 2, stride=2),
                ),
                nn.ConvTranspose2d(dim, dim, 2, stride=2),
                nn.Identity(),
                nn.MaxPool2d(2),
            ]
        )
        self.fpn = FeaturePyramidNetwork([dim] * 4, self.out_channels, extra_blocks=LastLevelMaxPool())

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        maps = self.trunk.forward_intermediates(images, indices=[3, 5, 7, 11], intermediates_only=True)
        levels = [step(level) for step, level in zip(self.neck, maps, strict=True)]
        return self.fpn(OrderedDict((str(place), level) for place, level in enumerate(levels)))


def make_example(size: int, batch: int) -> tuple[Detect, ObjectBatch]:
    """A task for images of one size, and a batch of noise with objects, the same for both sides."""
    recipe = change(
        DetectRecipe(),
        {
            "model.name": "deit_tiny",
            "data.spec": f"shapes:size=128,count={max(batch, 2)},val=2",
            "image_size": size,
            "batch_size": batch,
            "augmentation.short_sides": (size,),
            "augmentation.max_side": size,
            "augmentation.crop": 0.0,
            "view.short_side": size,
            "view.max_side": size,
            "optimizer.lr": 1e-4,
        },
    )
    assert isinstance(recipe, DetectRecipe)
    task = Detect(recipe, Site())
    task.open()
    torch.manual_seed(0)
    return task, task.example(batch)


def make_plain(work: str, size: int, batch: int) -> Call:
    """What a script has that puts the parts together."""
    _, example = make_example(size, batch)
    model = MaskRCNN(PlainBackbone(size), num_classes=1 + NUM_CLASSES, min_size=size, max_size=size)
    pixels = example.images.float() / 255.0
    targets = [to_target(objects) for objects in example.objects]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)

    def train() -> None:
        loss = torch.stack(list(model(list(pixels), targets).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.inference_mode()
    def answer() -> int:
        return sum(int((found["masks"] > 0.5).sum()) for found in model(list(pixels)))

    model.train(work == "training")
    return train if work == "training" else answer


def make_vitrail(work: str, size: int, batch: int, threads: int) -> Call:
    """What a run computes in a step, and what `predict` does with an image."""
    task, example = make_example(size, batch)
    model = task.make_model({"classes": [str(number) for number in range(NUM_CLASSES)]})
    task.attach(model)
    if work == "inference":
        folded = fold(model)

        def answer() -> int:
            found = ask(folded, [example], normalize=task.normalize, device=task.site.device, num_lanes=1)
            return sum(len(one.objects) for one in found)

        return answer
    model.train()
    objective = task.make_objective(total_steps=1)
    loop = LoopStep.of(model, task, objective, batch=batch, threads=threads)
    optimizer = task.recipe.optimizer.build(model, lr=1e-4)
    batches = list(split(example, loop.sizes))

    def train() -> None:
        for _ in loop.add_gradients(batches):
            pass
        optimizer.step()
        optimizer.zero_grad()

    return train


def split(batch: ObjectBatch, sizes: list[int]) -> list[ObjectBatch]:
    """A batch in parts of so many images."""
    ends = list(accumulate(sizes))
    parts = (slice(end - size, end) for end, size in zip(ends, sizes, strict=True))
    return [
        ObjectBatch(
            batch.images[part], batch.sizes[part], batch.objects[part], batch.indices[part], batch.original_sizes[part]
        )
        for part in parts
    ]


def make(side: str, work: str, arguments: argparse.Namespace) -> Call:
    size, batch, threads = arguments.size, arguments.batch, arguments.threads
    call = make_plain(work, size, batch) if side == "plain" else make_vitrail(work, size, batch, threads)

    def with_threads() -> object:
        torch.set_num_threads(threads)
        return call()

    return with_threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="side of the images")
    parser.add_argument("--batch", type=int, default=2, help="images of a step")
    parser.add_argument("--rounds", type=int, default=3, help="alternating calls in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of the process")
    parser.add_argument("--time", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", choices=WORKS, default=WORKS[0], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        call = make(arguments.memory_of, arguments.work, arguments)
        call()
        call()
        print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    if arguments.time:
        first, second = (make(side, arguments.time, arguments) for side in SIDES)
        print(json.dumps(best_times(first, second, rounds=arguments.rounds, clock=arguments.clock)))
        return
    options = ["--size", str(arguments.size), "--batch", str(arguments.batch), "--rounds", str(arguments.rounds)]
    options += ["--threads", str(arguments.threads), "--clock", arguments.clock]
    print(f"{machine()}; timm {timm.__version__}\n")
    print(f"Mask R-CNN, deit_tiny, {arguments.size} px, batch {arguments.batch}, fp32\n")
    print("| | plain s | vitrail s | ratio (range) | plain MiB | vitrail MiB | ratio |\n|---|---|---|---|---|---|---|")
    for work in WORKS:
        times = [in_fresh_process(__file__, "--time", work, *options) for _ in range(arguments.processes)]
        theirs, mine, ratio = summarize(times)
        memory = [in_fresh_process(__file__, "--memory-of", side, "--work", work, *options) for side in SIDES]
        peaks = f"{memory[0]:.0f} | {memory[1]:.0f} | {memory[1] / memory[0]:.2f}"
        print(f"| {work} | {theirs:.2f} | {mine:.2f} | {ratio} | {peaks} |", flush=True)


if __name__ == "__main__":
    main()
