"""Peak memory of PatchConvNet as the image grows: linear in its area (thesis figure 5.3), each in a fresh process.

python benchmarks/memory.py [--model patchconvnet_s60]
"""

import argparse
import json
import resource
import subprocess
import sys

import torch
from measure import machine

import vitrail

SIZES = (224, 288, 320, 384, 448, 512)
BATCH = 8


def activation_memory(name: str, image_size: int) -> float:
    """MiB that one batch adds to a fresh process that holds the model."""
    command = [sys.executable, __file__, "--model", name, "--measure", str(image_size)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(name: str, image_size: int) -> None:
    settings = {} if name.startswith("patchconvnet") else {"image_size": image_size}
    model = vitrail.fold(vitrail.create_model(name, **settings))
    with torch.inference_mode():
        model(torch.zeros(1, 3, 224, 224)) if not settings else None
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model(torch.zeros(BATCH, 3, image_size, image_size))
    print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="patchconvnet_s60")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.model, arguments.measure)
        return
    print(f"{machine()}\n\n{arguments.model}, folded, batch {BATCH}, fp32: memory that one batch adds\n")
    print("| image | area over 224's | MiB | MiB over 224's |")
    print("|---|---|---|---|")
    first = None
    for size in SIZES:
        added = activation_memory(arguments.model, size)
        first = first or added
        print(f"| {size} | {(size / SIZES[0]) ** 2:.2f} | {added:.0f} | {added / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
