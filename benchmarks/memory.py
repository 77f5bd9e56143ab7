"""Peak memory of PatchConvNet as the image grows: linear in its area (thesis figure 5.3), each in a fresh process.

Linux only: it reads the process's memory from /proc.

python benchmarks/memory.py [--model patchconvnet_s60]
"""

import argparse
import ctypes
import json
from pathlib import Path

import torch
from measure import in_fresh_process, machine

import vitrail

SIZES = (224, 288, 320, 384, 448, 512)
BATCH = 16


def measure(name: str, image_size: int) -> None:
    """Print the MiB that one batch adds, at its peak, to this process, which holds the model."""
    model = vitrail.fold(vitrail.create_model(name, image_size=image_size))
    with torch.inference_mode():
        model(torch.zeros(1, 3, 64, 64))
        ctypes.CDLL(None).malloc_trim(0)  # what building the model left free must not serve the batch
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is in use now
        before = resident("VmRSS")
        model(torch.zeros(BATCH, 3, image_size, image_size))
    print(json.dumps((resident("VmHWM") - before) / 1024))


def resident(field: str) -> int:
    """KiB in memory: VmRSS is what is there now, VmHWM the most there was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


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
        added = in_fresh_process(__file__, "--model", arguments.model, "--measure", str(size))
        first = first or added
        print(f"| {size} | {(size / SIZES[0]) ** 2:.2f} | {added:.0f} | {added / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
