"""Throughput and memory as the papers measure them (thesis tables 3.1, 3.5, 4.1, 5.2, 6.7), beside what they print.

The largest batch that fits, in mixed precision where the device has it, the mean of 30 runs. Their devices were V100s:
a published figure beside one of another device says how models compare with each other, not how devices do.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.evaluation.predict import autocast, choose_device, choose_precision
from vitrail.inference.benchmarking import read_peak_mb, reset_peak_mb
from vitrail.inference.folding import as_folded
from vitrail.inference.trained import Trained
from vitrail.models.contract import Model
from vitrail.models.figures.record import SETUPS, Speed
from vitrail.models.figures.speeds import SPEEDS

NUM_RUNS = 30
_MEMORY = Path("/proc/meminfo")
_SHARE = 0.5  # of the memory that is free, which a batch may take
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


@dataclass(frozen=True)
class PaperSpeed:
    """What was measured of a model, and what is published of it at that size."""

    model: str
    image_size: int
    device: str
    precision: str
    batch: int
    images_per_second: float  # of the model as it is
    folded_per_second: float
    peak_mb: float | None  # of the device; on a CPU that of the whole process
    published: tuple[Speed, ...]

    def describe(self) -> dict[str, Any]:
        """All of it, for JSON."""
        published = [{**one._asdict(), "setup": SETUPS[one.setup]} for one in self.published]
        return {**asdict(self), "published": published, "num_runs": NUM_RUNS}


COLUMNS = ("model", "px", "batch", "images/s", "folded", "peak MB", "published", "MB", "how")


def rows_of(source: str, found: PaperSpeed) -> Iterator[tuple[str, ...]]:
    """Rows of a table: one for each figure that is published, or one without."""
    own = (
        source,
        str(found.image_size),
        str(found.batch),
        f"{found.images_per_second:.1f}",
        f"{found.folded_per_second:.1f}",
        "" if found.peak_mb is None else f"{found.peak_mb:,.0f}",
    )
    for one in found.published:
        yield (*own, one.throughput or "", one.memory or "", f"{one.source}: {SETUPS[one.setup]}")
    if not found.published:
        yield (*own, "", "", "nothing is published at this size")


def measure_as_papers(
    trained: Trained, *, largest: int, num_runs: int = NUM_RUNS, told: Callable[[str], object] = lambda line: None
) -> PaperSpeed:
    """The mean speed of `num_runs` runs with the largest batch that fits, up to `largest`."""
    device = choose_device("auto")
    dtype = choose_precision("auto", device)
    model = trained.model.to(device).eval()
    height, width = model.config.size
    _forget_peak(device)
    batch, peak = find_largest(model, device=device, dtype=dtype, largest=largest)
    told(f"{model.name}: {batch} images at a time on {device}, {num_runs} runs")
    images = _images(model, batch, device)
    speeds = [
        num_runs * batch / _time(one, images, dtype=dtype, num_runs=num_runs) for one in (model, as_folded(model))
    ]
    return PaperSpeed(
        model=model.name,
        image_size=height,
        device=str(device),
        precision=str(dtype).removeprefix("torch."),
        batch=batch,
        images_per_second=speeds[0],
        folded_per_second=speeds[1],
        peak_mb=peak,
        published=tuple(one for one in SPEEDS.get(model.name, ()) if height == width and one.image_size == height),
    )


def find_largest(model: Model, *, device: torch.device, dtype: torch.dtype, largest: int) -> tuple[int, float | None]:
    """The largest power of two that fits, or `largest`, and the peak of memory with it.

    A GPU is tried until it is full. On a CPU, where the system would rather end other programs, the next batch is
    tried if twice what this one took is less than half of what is free.
    """
    batch, peak, fitted = 1, None, 0
    while True:
        before = _peak(device)
        try:
            _run(model, _images(model, batch, device), dtype=dtype)
        except RuntimeError as error:
            if not fitted or not any(words in str(error) for words in _OUT_OF_MEMORY):
                raise
            return fitted, peak
        peak, fitted = _peak(device), batch
        following = min(2 * batch, largest)
        taken = 0.0 if peak is None or before is None else max(peak - before, 0.0)
        if following == batch or (device.type == "cpu" and 2.0 * taken > _SHARE * _free_mb()):
            return batch, peak
        batch = following


def _forget_peak(device: torch.device) -> None:
    """Begin the peak of memory anew: models that were measured before have no part in it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        reset_peak_mb()


def _peak(device: torch.device) -> float | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return read_peak_mb() if device.type == "cpu" and _MEMORY.is_file() else None


def _free_mb() -> float:
    if _MEMORY.is_file():
        for line in _MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1e3
    return math.inf


def _images(model: Model, batch: int, device: torch.device) -> Tensor:
    return torch.randn(batch, model.config.in_channels, *model.config.size, device=device)


@torch.inference_mode()
def _run(model: Model, images: Tensor, *, dtype: torch.dtype) -> None:
    with autocast(images.device, dtype):
        model(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)


def _time(model: Model, images: Tensor, *, dtype: torch.dtype, num_runs: int) -> float:
    """Seconds of so many runs, after one that does not count."""
    _run(model, images, dtype=dtype)
    start = time.perf_counter()
    for _ in range(num_runs):
        _run(model, images, dtype=dtype)
    return time.perf_counter() - start
