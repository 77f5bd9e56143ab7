"""UperNet on DeiT-Ti of vitrail against timm's backbone with the decoder of segmentation-models-pytorch.

python benchmarks/upernet_step.py [--size 512] [--batch 2] [--rounds 3] [--processes 3] [--threads 2] [--clock wall]

A training step (crops to new weights) and inference (bytes to a class for every pixel), speed and peak memory. Both
sides have the pyramid of XCiT, width 192, 150 classes and the auxiliary head; the other decoder's layer norm of each
level, which UperNet has not, is left out.
"""

import argparse
import json
import resource
from collections.abc import Callable

import segmentation_models_pytorch
import timm
import torch
from loop_step import LoopStep
from measure import CLOCKS, best_times, in_fresh_process, machine, summarize
from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.blend import Normalize
from vitrail.data.dense.contract import MaskBatch
from vitrail.evaluation.segmenting import Looking, Segmenter
from vitrail.inference.folding import fold
from vitrail.settings.text import change
from vitrail.tasks.segment.settings import SegmentRecipe
from vitrail.tasks.segment.task import Segment
from vitrail.tasks.site import Site

DIM, NUM_CLASSES, BLOCKS = 192, 150, [3, 5, 7, 11]
SIDES, KINDS = ("plain", "vitrail"), ("training", "inference")
Call = Callable[[], object]


class PlainUperNet(nn.Module):
    """timm's DeiT-Ti, XCiT's four levels, the decoder of segmentation-models-pytorch, and an auxiliary FCN."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.backbone = timm.create_model("deit_tiny_patch16_224", img_size=size, num_classes=0)
        self.finest = nn.Sequential(
            nn.ConvTranspose2d(DIM, DIM, 2, 2), nn.BatchNorm2d(DIM), nn.GELU(), nn.ConvTranspose2d(DIM, DIM, 2, 2)
        )
        self.fine = nn.ConvTranspose2d(DIM, DIM, 2, 2)
        self.coarse = nn.MaxPool2d(2)
        self.decoder = UPerNetDecoder([3, DIM, *[DIM] * 4], decoder_channels=DIM)
        self.decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in range(4))
        self.head = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(DIM, NUM_CLASSES, 1))
        self.auxiliary = nn.Sequential(
            nn.Conv2d(DIM, 256, 3, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
            nn.Conv2d(256, NUM_CLASSES, 1),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        maps = self.backbone.forward_intermediates(images, indices=BLOCKS, intermediates_only=True)
        levels = [self.finest(maps[0]), self.fine(maps[1]), maps[2], self.coarse(maps[3])]
        logits = self.head(self.decoder([images, images, *levels]))
        return logits, self.auxiliary(levels[2]) if self.training else None


def make_plain(kind: str, size: int, batch: int) -> Call:
    torch.manual_seed(0)
    model = PlainUperNet(size)
    pixels = torch.randint(256, (batch, 3, size, size), dtype=torch.uint8)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (Normalize().mean, Normalize().std))
    if kind == "inference":
        model.eval()

        @torch.inference_mode()
        def answer() -> Tensor:
            logits, _ = model((pixels.float() / 255 - mean) / std)
            wide = functional.interpolate(logits, size=(size, size), mode="bilinear", align_corners=False)
            return wide.argmax(dim=1)

        return answer
    masks = torch.randint(NUM_CLASSES, (batch, size, size), dtype=torch.uint8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.01)

    def cost(logits: Tensor) -> Tensor:
        wide = functional.interpolate(logits, size=(size, size), mode="bilinear", align_corners=False)
        return functional.cross_entropy(wide, masks.long(), ignore_index=255)

    def step() -> None:
        logits, beside = model((pixels.float() / 255 - mean) / std)
        assert beside is not None
        optimizer.zero_grad()
        (cost(logits) + 0.4 * cost(beside)).backward()
        optimizer.step()

    return step


def make_ours(kind: str, size: int, batch: int, threads: int) -> Call:
    recipe = change(
        SegmentRecipe(),
        {
            "model.name": "deit_tiny",
            "data.spec": f"shapes:size=16,count={batch},val=2",
            "image_size": size,
            "batch_size": batch,
            "segment.channels": DIM,
            "regularisation.drop_path": 0.0,
            "optimizer.weight_decay": 0.01,
        },
    )
    assert isinstance(recipe, SegmentRecipe)
    task = Segment(recipe, Site(num_lanes=threads))
    task.open()
    model = task.make_model({"classes": [str(number) for number in range(NUM_CLASSES)]})
    task.attach(model)
    if kind == "inference":
        segmenter = Segmenter(
            fold(model.for_inference()), Looking(), normalize=task.normalize, device=torch.device("cpu")
        )
        pixels = task.example(batch).images
        del model, task.model

        def answer() -> Tensor:
            torch.set_num_threads(threads)
            return segmenter(pixels)

        return answer
    task.table = torch.arange(256, dtype=torch.uint8)
    model.train()
    objective = task.make_objective(total_steps=10_000)
    loop = LoopStep.of(model, task, objective, batch=batch, threads=threads)
    optimizer = recipe.optimizer.build(model, lr=6e-5)
    whole = task.example(batch)
    masks = torch.randint(NUM_CLASSES, (batch, size, size), dtype=torch.uint8)
    columns = (column.split(loop.sizes) for column in (whole.images, masks, whole.indices, whole.sizes))
    batches = [MaskBatch(*parts) for parts in zip(*columns, strict=True)]

    def step() -> None:
        for _ in loop.add_gradients(batches):
            pass
        optimizer.step()
        optimizer.zero_grad()

    return step


def make(side: str, kind: str, arguments: argparse.Namespace) -> Call:
    if side == "vitrail":
        return make_ours(kind, arguments.size, arguments.batch, arguments.threads)
    call = make_plain(kind, arguments.size, arguments.batch)

    def with_threads() -> None:
        torch.set_num_threads(arguments.threads)
        call()

    return with_threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="side of the images")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="alternating calls in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of the process")
    parser.add_argument("--time", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, default="training", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        call = make(arguments.memory_of, arguments.kind, arguments)
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
    print(f"{machine()}; timm {timm.__version__}, smp {segmentation_models_pytorch.__version__}\n")
    print(f"UperNet, deit_tiny, {arguments.size} px, batch {arguments.batch}, width {DIM}, 150 classes, fp32\n")
    print("| | plain s | vitrail s | ratio (range) | plain MiB | vitrail MiB | ratio |\n|---|---|---|---|---|---|---|")
    for kind in KINDS:
        times = [in_fresh_process(__file__, "--time", kind, *options) for _ in range(arguments.processes)]
        theirs, mine, ratio = summarize(times)
        plain, own = (in_fresh_process(__file__, "--memory-of", side, "--kind", kind, *options) for side in SIDES)
        print(
            f"| {kind} | {theirs:.2f} | {mine:.2f} | {ratio} | {plain:.0f} | {own:.0f} | {own / plain:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
