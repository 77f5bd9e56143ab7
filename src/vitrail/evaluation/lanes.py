"""Computing on a CPU in lanes: threads that compute whole parts of the work side by side, each on a core of its own.

torch's own threads divide every single operation and wait for each other at its end: beside another program on one core
all of them wait for the one that is held up, some thousand times a second. Lanes wait for each other once a step.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 2  # parts that are made ready for each lane while others are computed


class Lanes:
    """So many threads; with one, all is computed by whoever asks. `threads` are those of torch in each of them."""

    def __init__(self, count: int, *, threads: int = 1) -> None:
        self.count, self.threads = count, threads
        self._before = torch.get_num_threads()
        self._waited = self._computed = 0.0
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(
                count, thread_name_prefix="lane", initializer=keep_threads, initargs=(threads,)
            )

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self._before)  # what a lane sets is the default of threads that begin later
            self._pool = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The function of each item, in their order. Items are taken from `items` while others are computed."""
        if self._pool is None:
            for item in items:
                yield self._account(_timed(function, item))
            return
        waiting: deque[Future[tuple[Result, float, float]]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(_timed, function, item))
                while len(waiting) >= _AHEAD * self.count or (waiting and waiting[0].done()):
                    yield self._account(waiting.popleft().result())
            while waiting:
                yield self._account(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()

    def share_of_core(self) -> float:
        """The part of the time that lanes could have computed in which they had a core, since the last call.

        Only Linux tells how long a thread was ready and had none; elsewhere it is 1.
        """
        total = self._waited + self._computed
        share = self._computed / total if total > 0.0 else 1.0
        self._waited = self._computed = 0.0
        return share

    def _account(self, timed: tuple[Result, float, float]) -> Result:
        result, waited, computed = timed
        self._waited += waited
        self._computed += computed
        return result


def keep_threads(count: int) -> None:
    """Let operations of this thread, which has just begun, use so many threads, whatever other threads set later."""
    torch.get_num_threads()  # else its first operation would take what was last set anywhere
    torch.set_num_threads(count)


def _timed(function: Callable[[Item], Result], item: Item) -> tuple[Result, float, float]:
    """The function of an item, with the seconds in which this thread was ready without a core, and those with one."""
    start_waiting, start_computing = _core_seconds()
    result = function(item)
    waiting, computing = _core_seconds()
    return result, waiting - start_waiting, computing - start_computing


def _core_seconds() -> tuple[float, float]:
    """How long this thread has been ready without a core, and how long it had one; zeros where that is not told."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            computing, waiting, _ = file.read().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(waiting) / 1e9, int(computing) / 1e9
