"""How many cores there are, and how many threads torch computes with, for the time of a call."""

import contextlib
import os
from collections.abc import Iterator

import torch


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads inside the block; None: as many as it has."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
