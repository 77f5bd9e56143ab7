"""A first result on one's own photographs: `vitrail train fine_tune` against a plain script with timm, whole processes.

python benchmarks/first_result.py --data FOLDER [--epochs 3] [--seeds 0 1 2] [--out RESULTS]

FOLDER has train/CLASS/*.jpg and val/CLASS/*.jpg. Both sides fine-tune DeiT-Ti at 112 pixels from the same published
weights with AdamW, batches of 64, random resized crops and flips, and are measured on val once, at the end. Printed are
top-1 and the CPU seconds, user and system, of each process and its children from start to end.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZE, BATCH = 112, 64


def plain_script(data: Path, *, epochs: int, seed: int) -> float:
    """What one writes with timm in a quarter of an hour; top-1 on val."""
    import timm
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    torch.manual_seed(seed)
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop = transforms.RandomResizedCrop(SIZE, scale=(0.35, 1.0), interpolation=transforms.InterpolationMode.BICUBIC)
    varied = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize])
    centre = [transforms.Resize(SIZE, interpolation=transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(SIZE)]
    plain = transforms.Compose([*centre, transforms.ToTensor(), normalize])
    train = datasets.ImageFolder(str(data / "train"), varied)
    val = datasets.ImageFolder(str(data / "val"), plain)
    model = timm.create_model(
        "deit_tiny_patch16_224", pretrained=True, num_classes=len(train.classes), img_size=SIZE, drop_path_rate=0.1
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.05)
    loader = DataLoader(train, batch_size=BATCH, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    for _ in range(epochs):
        model.train()
        for images, targets in loader:
            loss = functional.cross_entropy(model(images), targets, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.inference_mode():
        hits = [(model(images).argmax(dim=1) == targets) for images, targets in DataLoader(val, batch_size=BATCH)]
    return 100.0 * torch.cat(hits).float().mean().item()


def run(command: list[str]) -> tuple[str, float]:
    """What a process prints, and the CPU seconds of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_plain(arguments: argparse.Namespace, seed: int) -> tuple[float, float]:
    options = ["--data", str(arguments.data), "--epochs", str(arguments.epochs), "--plain", str(seed)]
    printed, seconds = run([sys.executable, __file__, *options])
    return json.loads(printed.splitlines()[-1]), seconds


def run_ours(arguments: argparse.Namespace, seed: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [f"data={arguments.data}", f"out={folder}/run", f"epochs={arguments.epochs}", f"seed={seed}"]
        words += [f"evaluation.every={arguments.epochs}", *arguments.words]
        printed, seconds = run([sys.executable, "-m", "vitrail", "train", "fine_tune", *words])
    found = re.search(r"top-1 ([\d.]+) %", printed)
    assert found, printed
    return float(found[1]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sides", nargs="+", choices=("timm", "vitrail"), default=["timm", "vitrail"])
    parser.add_argument("--words", nargs="*", default=[], help="further settings of vitrail train")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain is not None:
        print(json.dumps(plain_script(arguments.data, epochs=arguments.epochs, seed=arguments.plain)))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| | seed | top-1, % | CPU s |\n|---|---|---|---|", flush=True)
    runs = {"timm": run_plain, "vitrail": run_ours}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in arguments.sides}
    for seed in arguments.seeds:
        for side in arguments.sides:
            found[side].append(runs[side](arguments, seed))
            print(f"| {side} | {seed} | {found[side][-1][0]:.1f} | {found[side][-1][1]:.1f} |", flush=True)
    for side, results in found.items():
        top1, seconds = (statistics.mean(column) for column in zip(*results, strict=True))
        print(f"| {side} | mean | {top1:.1f} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
