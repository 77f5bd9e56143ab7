"""The speed and memory of a detector, which no engine but torch takes: what `predict` computes for an image."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.inference.benchmarking import (
    Comparison,
    Measurement,
    choose_fastest,
    in_own_process,
    measurement_of,
    read_peak_mb,
    thread_counts,
    time_by_turns,
)
from vitrail.inference.engines.threads import torch_threads
from vitrail.inference.engines.ways import Way
from vitrail.inference.folding import as_folded
from vitrail.inference.trained import Trained

ENGINE = "eager"


def time_detector(
    load: Callable[[], Trained],
    *,
    batches: Sequence[int],
    seconds: float,
    has_memory: bool,
    told: Callable[[str], object] = lambda line: None,
) -> Comparison:
    """The detector on squares of its short side, of noise, with one thread and with all cores; `load` is pickled."""
    trained = load()
    found: list[Measurement] = []
    for batch in batches:
        told(f"{len(thread_counts())} contenders, {batch} images at a time")
        asks = {count: partial(_ask_with, count, make_call(trained, batch)) for count in thread_counts()}
        for count, times in time_by_turns(asks, seconds=seconds).items():
            found.append(measurement_of(ENGINE, way=Way(count), batch=batch, times=times))
    if has_memory:
        peak = in_own_process(_use_memory, load, max(batches))
        found = [replace(one, peak_mb=peak) if one.batch == max(batches) else one for one in found]
    return Comparison(tuple(found), *choose_fastest(found))


def make_call(trained: Trained, batch: int) -> Callable[[], object]:
    """What finds the objects of so many images."""
    config: Any = trained.model.config
    side = config.head.short_side
    model = as_folded(trained.model).eval()
    images = torch.randint(256, (batch, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sizes = torch.full((batch, 2), side)

    def call() -> list[dict[str, Tensor]]:
        with torch.no_grad():
            answers: list[dict[str, Tensor]] = model(trained.normalize(images), sizes)
        return answers

    return call


def _ask_with(threads: int, call: Callable[[], object]) -> None:
    with torch_threads(threads):
        call()


def _use_memory(load: Callable[[], Trained], batch: int) -> float:
    """Megabytes that opening the detector and asking it takes at most."""
    before = read_peak_mb()
    make_call(load(), batch)()
    return read_peak_mb() - before
