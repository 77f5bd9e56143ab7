"""How a batch is computed: at once, some images after the others, or parts of it side by side."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class Way:
    """Threads of a call, and how batches that are larger than a part are divided."""

    threads: int | None = None  # None: as the engine thinks best
    part: int | None = None  # images that are computed at a time; None: all
    lanes: int = 1  # parts that are computed side by side, each by one thread

    def __str__(self) -> str:
        told = "" if self.threads is None else f"{self.threads} {'thread' if self.threads == 1 else 'threads'}"
        if self.part is None:
            return told
        beside = f" on each of {self.lanes} cores" if self.lanes > 1 else ""
        return f"{told}, {self.part} images of a batch at a time{beside}".removeprefix(", ")

    @property
    def at_a_time(self) -> str:
        """How many images are computed at a time, for the cell of a table."""
        if self.part is None:
            return "all"
        return str(self.part) if self.lanes == 1 else f"{self.lanes} x {self.part}"


class SideBySide:
    """Threads that ask one computation, each for a part of a batch.

    Threads inside an engine divide every operation and wait for each other at its end; these wait once a batch.
    """

    def __init__(self, compute: Callable[[Tensor], Outputs], *, lanes: int) -> None:
        self.compute, self.lanes = compute, lanes
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="engine")

    def __call__(self, images: Tensor, part: int) -> list[Outputs]:
        """The answers to parts of a batch, in their order; no part is larger than an even share of it."""
        size = min(part, math.ceil(len(images) / self.lanes))
        return list(self._pool.map(self.compute, images.split(size)))
