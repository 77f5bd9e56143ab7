"""A step of DINO (2 global and 6 local crops) of vitrail against the paper's recipe written plainly with timm's model.

python benchmarks/dino_step.py [--batch 64] [--rounds 3] [--processes 3] [--threads 2] [--clock wall] [--dtype fp32]

Speed, peak memory, and then reading: the crops of an image that is decoded once against decoding it for each of them.
Both sides have DeiT-Ti, a head of 65,536 outputs, AdamW, clipping, and a teacher that follows; with `--dtype bf16` both
compute products in bf16, as `vitrail pretrain` does by itself on a CPU that has instructions for it.
"""

import argparse
import copy
import io
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from loop_step import LoopStep
from measure import CLOCKS, best_times, in_fresh_process, machine, summarize
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.contract import CropsBatch, Sample
from vitrail.data.decode import open_image
from vitrail.data.draws import Draws
from vitrail.data.samples import Crops
from vitrail.data.sources.files import ImageFiles
from vitrail.settings.text import change
from vitrail.tasks.dino.settings import DinoRecipe
from vitrail.tasks.dino.task import DinoTask
from vitrail.tasks.site import Site

NUM_LOCAL, SIZE, LOCAL_SIZE, NUM_OUTPUTS = 6, 96, 48, 65536
SIDES = ("plain", "vitrail")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Step = Callable[[], None]


class PlainHead(nn.Module):
    """The projection head, with torch's own weight normalisation."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 256)
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(256, NUM_OUTPUTS, bias=False))
        self.last.parametrizations.weight.original0.data.fill_(1.0)
        self.last.parametrizations.weight.original0.requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        return self.last(functional.normalize(self.mlp(features), dim=-1))


def make_plain_step(batch: int, dtype: torch.dtype) -> Step:
    """The paper's algorithm 1 and appendix, line by line."""

    def network(drop_path: float) -> nn.ModuleList:
        trunk = timm.create_model(
            "deit_tiny_patch16_224",
            img_size=SIZE,
            num_classes=0,
            dynamic_img_size=True,
            drop_path_rate=drop_path,
        )
        return nn.ModuleList([trunk, PlainHead(192)])

    student, teacher = network(0.1).train(), network(0.0).train()
    teacher.load_state_dict(copy.deepcopy(student.state_dict()))
    teacher.requires_grad_(False)
    decayed = [value for value in student.parameters() if value.requires_grad and value.ndim > 1]
    others = [value for value in student.parameters() if value.requires_grad and value.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.04}, {"params": others, "weight_decay": 0.0}])
    centre = torch.zeros(1, NUM_OUTPUTS)
    crops = [torch.randn(batch, 3, SIZE, SIZE) for _ in range(2)]
    crops += [torch.randn(batch, 3, LOCAL_SIZE, LOCAL_SIZE) for _ in range(NUM_LOCAL)]

    def answer(net: nn.ModuleList, views: list[Tensor]) -> Tensor:
        trunk, head = net
        features = [trunk(torch.cat(views[:2]))]
        if len(views) > 2:
            features.append(trunk(torch.cat(views[2:])))
        return head(torch.cat(features))

    def step() -> None:
        nonlocal centre
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            taught = answer(teacher, crops[:2])
            said = (answer(student, crops) / 0.1).chunk(2 + NUM_LOCAL)
            targets = functional.softmax((taught - centre) / 0.04, dim=-1).detach().chunk(2)
            loss, num_pairs = torch.zeros(()), 0
            for seen, target in enumerate(targets):
                for crop, logits in enumerate(said):
                    if crop != seen:
                        loss = loss + torch.sum(-target * functional.log_softmax(logits, dim=-1), dim=-1).mean()
                        num_pairs += 1
        optimizer.zero_grad()
        (loss / num_pairs).backward()
        for value in student.parameters():
            if value.grad is not None:
                norm = value.grad.norm(2)
                if norm > 3.0:
                    value.grad.mul_(3.0 / (norm + 1e-6))
        optimizer.step()
        with torch.no_grad():
            centre = centre * 0.9 + taught.mean(dim=0, keepdim=True) * 0.1
            for own, new in zip(teacher.parameters(), student.parameters(), strict=True):
                own.mul_(0.996).add_(new.detach(), alpha=0.004)

    return step


def make_vitrail_step(batch: int, threads: int, dtype: torch.dtype) -> Step:
    """What a run computes in a step, from the crops that a loader gives."""
    recipe = change(
        DinoRecipe(),
        {
            "model.name": "deit_tiny",
            "data.spec": f"shapes:size=16,count={batch},val=2",
            "image_size": SIZE,
            "crops.local_size": LOCAL_SIZE,
            "crops.num_local": NUM_LOCAL,
            "batch_size": batch,
            "dino.frozen_epochs": 0.0,
            "regularisation.drop_path": 0.1,
            "optimizer.weight_decay": 0.04,
            "optimizer.clip": 3.0,
        },
    )
    assert isinstance(recipe, DinoRecipe)
    task = DinoTask(recipe, Site(num_lanes=threads, dtype=dtype))
    task.open()
    model = task.make_model({}).train()
    task.attach(model)
    objective = task.make_objective(total_steps=10_000)
    loop = LoopStep.of(model, task, objective, batch=batch, threads=threads)
    optimizer = recipe.optimizer.build(model, lr=1e-3)
    whole = task.example(batch)
    columns = zip(*(crops.split(loop.sizes) for crops in whole.crops), strict=True)
    batches = [
        CropsBatch(crops, targets, indices)
        for crops, targets, indices in zip(
            columns, whole.targets.split(loop.sizes), whole.indices.split(loop.sizes), strict=True
        )
    ]

    def step() -> None:
        for losses in loop.add_gradients(batches):
            objective.note(losses.seen)
        objective.before_step(model)
        nn.utils.clip_grad_norm_([value for value in model.parameters() if value.grad is not None], 3.0)
        optimizer.step()
        objective.after_step(model)
        optimizer.zero_grad()

    return step


def make_step(side: str, batch: int, threads: int, dtype: torch.dtype) -> Step:
    if side == "vitrail":
        return make_vitrail_step(batch, threads, dtype)
    step = make_plain_step(batch, dtype)

    def with_threads() -> None:
        torch.set_num_threads(threads)
        step()

    return with_threads


def measure_reading() -> tuple[float, float]:
    """Milliseconds of the crops of a photograph of 500 x 375, decoded for each crop and once."""
    settings = DinoRecipe().crops
    large = [one.build(image_size=SIZE) for one in (settings.first, settings.second)]
    transforms = [*large, *[settings.local.build(image_size=LOCAL_SIZE)] * NUM_LOCAL]
    maker, num_rounds = Crops(transforms), 40
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photo.jpg"
        noise = torch.nn.functional.interpolate(torch.rand(1, 3, 94, 125), size=(375, 500), mode="bicubic")[0]
        pixels = (255 * noise).clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "jpeg", quality=90)
        path.write_bytes(content.getvalue())
        data = ImageFiles([str(path)])

        def draws(number: int) -> list[Draws]:
            return [Draws(number, view) for view in range(len(transforms))]

        def for_each(number: int) -> None:
            for transform, own in zip(transforms, draws(number), strict=True):
                transform(open_image(data.read(0)), own)

        def once(number: int) -> None:
            maker.make(data, Sample(0, 0, 0), draws(number))

        times = [0.0, 0.0]
        for number in range(num_rounds + 1):
            for place, call in enumerate((for_each, once)):
                start = time.process_time()
                call(number)
                times[place] += (time.process_time() - start) * (number > 0)
    return 1000 * times[0] / num_rounds, 1000 * times[1] / num_rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="images of a step: what a GPU has in the paper")
    parser.add_argument("--rounds", type=int, default=3, help="alternating steps in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of the process")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        step = make_step(arguments.memory_of, arguments.batch, arguments.threads, DTYPES[arguments.dtype])
        step()
        step()
        print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    if arguments.time:
        first, second = (make_step(side, arguments.batch, arguments.threads, DTYPES[arguments.dtype]) for side in SIDES)
        print(json.dumps(best_times(first, second, rounds=arguments.rounds, clock=arguments.clock)))
        return
    options = ["--batch", str(arguments.batch), "--rounds", str(arguments.rounds)]
    options += ["--threads", str(arguments.threads), "--clock", arguments.clock]
    options += ["--dtype", arguments.dtype]
    print(f"{machine()}; timm {timm.__version__}\n")
    print(
        f"DINO, deit_tiny, 2 x {SIZE} and {NUM_LOCAL} x {LOCAL_SIZE} px, batch {arguments.batch}, {arguments.dtype}\n"
    )
    times = [in_fresh_process(__file__, "--time", *options) for _ in range(arguments.processes)]
    theirs, mine, ratio = summarize(times)
    print("| plain torch s/step | vitrail s/step | ratio (range) |\n|---|---|---|")
    print(f"| {theirs:.2f} | {mine:.2f} | {ratio} |\n", flush=True)
    theirs, mine = (in_fresh_process(__file__, "--memory-of", side, *options) for side in SIDES)
    print(f"Peak memory: plain {theirs:.0f} MiB, vitrail {mine:.0f} MiB, ratio {mine / theirs:.2f}\n", flush=True)
    each, once = measure_reading()
    print(f"Crops of one photograph: decoded for each {each:.1f} ms, once {once:.1f} ms, ratio {each / once:.2f}")


if __name__ == "__main__":
    main()
