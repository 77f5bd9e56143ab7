"""Computing on a CPU in lanes: threads that compute whole parts of the work side by side, each on a core of its own.

torch's own threads divide every single operation and wait for each other at its end: beside another program on one core
all of them wait for the one that is held up, some thousand times a second. Lanes wait for each other once a step.
"""

import time
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
        self._passed = self._computed = 0.0
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(
                count, thread_name_prefix="lane", initializer=torch.set_num_threads, initargs=(threads,)
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
        """The part of its time that a lane had a core to compute on, since the last call; 1 where nothing was done."""
        share = self._computed / self._passed if self._passed > 0.0 else 1.0
        self._passed = self._computed = 0.0
        return min(share, 1.0)

    def _account(self, timed: tuple[Result, float, float]) -> Result:
        result, passed, computed = timed
        self._passed += passed
        self._computed += computed
        return result


def _timed(function: Callable[[Item], Result], item: Item) -> tuple[Result, float, float]:
    """The function of an item, with the seconds that passed and those in which this thread had a core."""
    start, start_computing = time.perf_counter(), time.thread_time()
    result = function(item)
    return result, time.perf_counter() - start, time.thread_time() - start_computing
