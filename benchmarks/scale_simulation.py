"""A simulation, not a measurement: how long a step of 8 to 1,024 processes would take, by parts that are measured here.

Measured on this machine: the step of one process and how it varies; the bytes of its gradients; what gloo takes to sum
them over two and four processes; images a second that one process decodes. Computed from these, for N processes: the
slowest of N steps (drawn from those measured), a ring all-reduce over links of a given speed, and the loader's share.
The same arithmetic is first held against two and four real processes that train with DDP on this machine.

What it leaves out: overlap of exchange and backward pass beyond `--overlap`, topology and congestion of a network,
failures, storage. Links and their latency are assumptions, given on the command line and printed.

python benchmarks/scale_simulation.py [--model deit_tiny] [--steps 12] [--link-gbit 100] [--latency-us 20]
"""

import argparse
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measure import in_fresh_process, machine, publish
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import vitrail

SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
REAL = (2, 4)
NUM_DRAWS = 2000


def step_seconds(arguments: argparse.Namespace, *, is_parallel: bool) -> list[float]:
    """The seconds of steps of this process: forward, backward, and the exchange where `is_parallel`."""
    torch.manual_seed(0)
    model: torch.nn.Module = vitrail.create_model(arguments.model, image_size=arguments.size, num_classes=100)
    model.train()
    trained = DistributedDataParallel(model) if is_parallel else model
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    targets = torch.zeros(arguments.batch, dtype=torch.int64)
    seconds = []
    for step in range(arguments.steps + 2):
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        output = trained(images)
        functional.cross_entropy(output, targets).backward()
        model.zero_grad()
        if step >= 2:  # the first ones warm up
            seconds.append(time.perf_counter() - start)
    return seconds


def gradient_bytes(arguments: argparse.Namespace) -> int:
    """What every process sends of its gradients in a step."""
    model = vitrail.create_model(arguments.model, image_size=arguments.size, num_classes=100)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def sum_seconds(num_bytes: int, steps: int) -> list[float]:
    """The seconds of an all-reduce of so many bytes between the processes of this group."""
    values = torch.ones(num_bytes // 4)
    seconds = []
    for step in range(steps + 2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    return seconds


def run_rank(arguments: argparse.Namespace) -> None:
    """One of several processes; the first one prints what it measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    alone = step_seconds(arguments, is_parallel=False)  # all compute at once, and nobody exchanges anything
    sums = sum_seconds(gradient_bytes(arguments), arguments.steps)
    together = step_seconds(arguments, is_parallel=True)
    if dist.get_rank() == 0:
        print(json.dumps({"alone": alone, "sums": sums, "together": together}))
    dist.destroy_process_group()


def measure_real(arguments: argparse.Namespace, num_ranks: int) -> dict[str, list[float]]:
    """What that many processes of this machine take."""
    import subprocess

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = ["--model", arguments.model, "--steps", str(arguments.steps), "--batch", str(arguments.batch)]
    command = [sys.executable, __file__, "--rank-of", str(num_ranks), *words, "--size", str(arguments.size)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(num_ranks)
    ]
    said = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"a process of {num_ranks} failed")
    return json.loads(said[0])


def ring_seconds(num_bytes: int, num_ranks: int, *, bandwidth: float, latency: float) -> float:
    """A ring all-reduce: each process sends its bytes nearly twice, in 2 (N - 1) messages."""
    if num_ranks == 1:
        return 0.0
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / bandwidth + 2 * (num_ranks - 1) * latency


def slowest_of(seconds: list[float], num_ranks: int) -> float:
    """The mean of the slowest of N steps, each drawn from those that were measured."""
    drawn = np.random.default_rng(0).choice(seconds, size=(NUM_DRAWS, num_ranks))
    return float(drawn.max(axis=1).mean())


def predict(parts: dict[str, Any], num_ranks: int, *, bandwidth: float, latency: float, overlap: float) -> float:
    """The seconds of a step of N processes."""
    exchange = ring_seconds(parts["bytes"], num_ranks, bandwidth=bandwidth, latency=latency)
    compute = slowest_of(parts["steps"], num_ranks)
    return max(compute + (1 - overlap) * exchange, parts["loader"])


def images_a_second(size: int) -> float:
    """What one process of this machine decodes and crops, by the fashion set's own images enlarged to a JPEG."""
    import io

    from PIL import Image

    from vitrail.data.decode import open_image
    from vitrail.data.draws import Draws
    from vitrail.settings.images import AugmentationSettings

    buffer = io.BytesIO()
    noise = np.random.RandomState(0).randint(0, 255, (24, 32, 3)).astype(np.uint8)
    Image.fromarray(noise).resize((500, 375)).save(buffer, "JPEG", quality=92)
    crop = AugmentationSettings().build(image_size=size)
    start, number = time.perf_counter(), 64
    for index in range(number):
        crop(open_image(buffer.getvalue()), Draws(0, 0, index, 0))
    return number / (time.perf_counter() - start)


def main() -> None:
    """Measure the parts, compare with real processes, then compute the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="deit_tiny")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--workers", type=int, default=8, help="processes that decode for each process that trains")
    parser.add_argument("--link-gbit", type=float, default=100.0)
    parser.add_argument("--latency-us", type=float, default=20.0)
    parser.add_argument("--overlap", type=float, default=0.0, help="part of the exchange that hides behind computing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rank_of:
        run_rank(arguments)
        return
    if arguments.alone:
        print(json.dumps(step_seconds(arguments, is_parallel=False)))
        return
    words = ["--model", arguments.model, "--steps", str(arguments.steps), "--batch", str(arguments.batch)]
    steps = in_fresh_process(__file__, "--alone", *words, "--size", str(arguments.size))
    num_bytes, speed = gradient_bytes(arguments), images_a_second(arguments.size)
    lines = [
        f"{machine()}; {arguments.model}, {arguments.batch} images a process",
        "",
        f"Measured: a step of one process {statistics.median(steps):.3f} s ({min(steps):.3f}-{max(steps):.3f}), "
        f"gradients {num_bytes / 1e6:.1f} MB, {speed:.0f} images/s decoded by one process.",
        "",
        "| processes, real | computing, s | gloo's sum, s | MB/s | predicted, s | measured, s | predicted / measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for num_ranks in REAL:
        real = measure_real(arguments, num_ranks)
        summed = statistics.median(real["sums"])
        bandwidth = 2 * (num_ranks - 1) / num_ranks * num_bytes / summed
        computing = slowest_of(real["alone"], num_ranks)
        predicted, measured = computing + summed, statistics.median(real["together"])
        lines.append(
            f"| {num_ranks} | {computing:.3f} | {summed:.4f} | {bandwidth / 1e6:,.0f} | {predicted:.3f} | "
            f"{measured:.3f} | {predicted / measured:.2f} |"
        )
    parts = {"bytes": num_bytes, "steps": steps, "loader": arguments.batch / (speed * arguments.workers)}
    link = arguments.link_gbit * 1e9 / 8
    lines += [
        "",
        f"Simulated: a machine like this one for each process, links of {arguments.link_gbit:g} Gbit/s and "
        f"{arguments.latency_us:g} us (assumed), {arguments.workers} processes that decode for each, overlap "
        f"{arguments.overlap:g}.",
        "",
        "| processes, simulated | slowest step, s | exchange, s | step, s | images/s | efficiency |",
        "|---|---|---|---|---|---|",
    ]
    settings = {"bandwidth": link, "latency": arguments.latency_us * 1e-6, "overlap": arguments.overlap}
    first = predict(parts, 1, **settings)
    for num_ranks in SIZES:
        step = predict(parts, num_ranks, **settings)
        exchange = ring_seconds(num_bytes, num_ranks, bandwidth=link, latency=settings["latency"])
        rate = num_ranks * arguments.batch / step
        lines.append(
            f"| {num_ranks:,} | {slowest_of(steps, num_ranks):.3f} | {exchange:.4f} | {step:.3f} | {rate:,.0f} | "
            f"{first / step:.0%} |"
        )
    publish(lines, arguments.out)


if __name__ == "__main__":
    main()
