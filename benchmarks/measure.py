"""Timing two callables against each other: alternating in one process, and the whole again in fresh processes.

Alternating lets the machine's moods hit both alike. Fresh processes matter because the state of the memory allocator,
which a process keeps, can change the speed of code that makes large temporary tensors by a factor of two.
"""

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vitrail.layers.bfloat16 import has_native_bfloat16

# The time of the process is what others on the machine disturb least; it means something with one thread.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def best_times(
    first: Callable[[], object], second: Callable[[], object], *, rounds: int, clock: str = "wall"
) -> tuple[float, float]:
    """Best seconds of each over `rounds` alternating calls, after one warm-up call of each."""
    now = CLOCKS[clock]
    first()
    second()
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, call in enumerate((first, second)):
            start = now()
            call()
            best[index] = min(best[index], now() - start)
    return best[0], best[1]


def in_fresh_process(script: str, *arguments: str) -> Any:
    """What a new process of a benchmark script prints, as JSON."""
    command = [sys.executable, script, *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def summarize(times: list[tuple[float, float]]) -> tuple[float, float, str]:
    """Median seconds of both sides, and the median ratio with its range, over processes."""
    ratios = sorted(first / second for first, second in times)
    first, second = (statistics.median(side) for side in zip(*times, strict=True))
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return first, second, spread


def default_dtypes() -> list[str]:
    """fp32, and bf16 where the CPU has it: emulated, it would take an hour and say little."""
    return ["fp32", "bf16"] if has_native_bfloat16() else ["fp32"]


def machine() -> str:
    """The processor and what decides its speed, for the heading of a table."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    bf16 = "bf16 instructions" if has_native_bfloat16() else "no bf16 instructions"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, {bf16}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def peak_memory() -> float:
    """Gigabytes, of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


def memory_of(call: Callable[[], object]) -> float:
    """Gigabytes that a call takes at its peak, beside what the process holds before it (Linux alone).

    Memory that was freed before, but is kept by the allocator, is held already: small needs may show as nothing.
    """
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_peak(status)
    call()
    return _read_peak(status) - before


def _read_peak(status: Path) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e9


def publish(lines: list[str], out: Path | None) -> None:
    """Print a table, and write it to a file where one is given."""
    text = "\n".join(lines)
    print(text)
    if out:
        out.write_text(text + "\n")
