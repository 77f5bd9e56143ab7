"""Processes that train together, played by threads of one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from vitrail.tasks.embed.memory import Processes

Result = TypeVar("Result")


def run_together(num_ranks: int, work: Callable[[Processes], Result]) -> list[Result]:
    """The results of `work` in every process, in the order of ranks; sums over them are real ones."""
    barrier = threading.Barrier(num_ranks, timeout=30)
    sent: list[Tensor | None] = [None] * num_ranks

    def run(rank: int) -> Result:
        def all_reduce(tensor: Tensor) -> Tensor:
            sent[rank] = tensor.detach().clone()
            barrier.wait()
            total = torch.stack([part for part in sent if part is not None]).sum(dim=0)
            barrier.wait()  # nobody sends again before all have read
            return tensor.copy_(total)

        try:
            return work(Processes(rank=rank, num_ranks=num_ranks, all_reduce=all_reduce))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))
