"""Processes that train together, played by threads of one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitrail.tasks.embed.memory import Processes
from vitrail.training.parallel.distributed import World

Result = TypeVar("Result")


def run_together(num_ranks: int, work: Callable[[Processes], Result]) -> list[Result]:
    """The results of `work` in every process, in the order of ranks; sums over them are real ones."""
    barrier = threading.Barrier(num_ranks, timeout=60)
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


class ThreadedWorld(World):
    """One of several processes, played by a thread: a process that waits for others in vain is an error at once."""

    def __init__(self, rank: int, num_ranks: int, meeting: "Meeting") -> None:
        super().__init__(rank=rank, num_ranks=num_ranks)
        object.__setattr__(self, "meeting", meeting)

    meeting: "Meeting"

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is true in any process."""
        return [any(votes) for votes in zip(*self.meeting.exchange(self.rank, "any", flags), strict=True)]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        sent = self.meeting.exchange(self.rank, "sum", tensor.clone())
        return tensor.copy_(torch.stack(sent).sum(dim=0))

    def share(self, value: Any) -> Any:
        """The main process's value."""
        return self.meeting.exchange(self.rank, "share", value)[0]

    def gather(self, value: Any) -> list[Any]:
        """Every process's value."""
        return self.meeting.exchange(self.rank, "gather", value)


class Meeting:
    """Where threads exchange values; all must have come for the same."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=60)
        self.sent: list[tuple[str, Any]] = [("", None)] * num_ranks

    def exchange(self, rank: int, kind: str, value: Any) -> list[Any]:
        """What each has sent."""
        self.sent[rank] = (kind, value)
        self.barrier.wait()
        found = list(self.sent)
        self.barrier.wait()  # nobody sends again before all have read
        assert {other for other, _ in found} == {kind}, f"processes wait for each other in {found}"
        return [sent for _, sent in found]


def run_worlds(num_ranks: int, work: Callable[[World], Result]) -> list[Result]:
    """The results of `work` in every process, in the order of ranks; one that ends early is missed by the others."""
    meeting = Meeting(num_ranks)

    def run(rank: int) -> Result:
        try:
            return work(ThreadedWorld(rank, num_ranks, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))
