"""Timing two callables against each other in one process, alternating, so that the machine's moods hit both alike."""

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


def best_times(first: Callable[[], object], second: Callable[[], object], *, rounds: int) -> tuple[float, float]:
    """Best seconds of each over `rounds` alternating calls, after one warm-up call of each."""
    first()
    second()
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, call in enumerate((first, second)):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best[0], best[1]


def machine() -> str:
    """The processor and what decides its speed, for the heading of a table."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    flags = ""
    if cpuinfo.exists():
        text = cpuinfo.read_text()
        name = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), name)
        flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    bf16 = "bf16 instructions" if "amx_bf16" in flags or "avx512_bf16" in flags else "no bf16 instructions"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, {bf16}, {torch.get_num_threads()} threads, torch {torch.__version__}"
