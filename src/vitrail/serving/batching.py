"""Images of many requests computed together: a bounded queue for each model, and a batch when waiting is no use."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import torch

from vitrail.evaluation.lanes import Lanes
from vitrail.serving.limits import ServingLimits
from vitrail.serving.refusals import RefusedError

Item = TypeVar("Item")
Result = TypeVar("Result")
_LEAST = 2  # images of a part
_FORGET = 0.2  # weight of the newest batch in the mean time of an image


class ComputeLane:
    """Where all models compute, by turns: torch divides an image among its threads, and a batch is cut into parts.

    Each part is then the work of one thread, which waits for no other before its end (`evaluation/lanes.py`).
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._lanes = Lanes(self.threads)
        self.turn = asyncio.Lock()

    async def run(
        self, work: Callable[[list[Item]], Sequence[Result]], items: list[Item], *, largest_whole: int
    ) -> list[Result]:
        """What the work gives for all items, in their order; whoever waits for a turn must have it.

        More items than `largest_whole` are cut into parts.
        """
        compute = self._compute_whole if len(items) <= largest_whole else self._compute_parts
        return await asyncio.get_running_loop().run_in_executor(self._pool, compute, work, items)

    # Each time, since torch keeps the number of threads of some libraries for the whole process.

    def _compute_whole(self, work: Callable[[list[Item]], Sequence[Result]], items: list[Item]) -> list[Result]:
        torch.set_num_threads(self.threads)
        return list(work(items))

    def _compute_parts(self, work: Callable[[list[Item]], Sequence[Result]], items: list[Item]) -> list[Result]:
        def compute(part: list[Item]) -> Sequence[Result]:
            torch.set_num_threads(1)
            return work(part)

        num_parts = min(self.threads, len(items))
        cuts = [len(items) * number // num_parts for number in range(num_parts + 1)]
        parts = [items[first:last] for first, last in pairwise(cuts)]
        return [result for found in self._lanes.map(compute, parts) for result in found]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._lanes.close()


@dataclass(eq=False)
class _Request:
    """A request in the queue."""

    left: int  # images that have no answer yet


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    answer: "asyncio.Future[Result]"
    since: float
    request: _Request


class Reservation(Generic[Item, Result]):
    """A place in the queue for the images of a request, held while they are decoded."""

    def __init__(self, batcher: "Batcher[Item, Result]", count: int) -> None:
        self._batcher, self._count = batcher, count

    async def ask(self, items: Sequence[Item]) -> list[Result]:
        """What the model says about each; a refusal of one of them is raised."""
        assert len(items) <= self._count
        return await self._batcher.answer(items, reservation=self)

    def release(self) -> int:
        """Give the place back; how much of it there was."""
        count, self._count = self._count, 0
        return count


class Batcher(Generic[Item, Result]):
    """A queue of images in front of one computation of one model.

    `compute` gets a list of items and gives as many results, in a thread of its own; a result that is a `RefusedError`
    is raised to the one who asked; with `may_part` parts of a list may be computed side by side. All methods belong to
    the event loop's thread.
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Sequence[Result | RefusedError]],
        *,
        lane: ComputeLane,
        limits: ServingLimits,
        max_batch: int | None = None,
        may_part: bool = False,
        note: Callable[[int, float], object] = lambda count, seconds: None,
    ) -> None:
        self._compute, self._lane, self._note = compute, lane, note
        self._max_batch = self._largest_whole = limits.max_batch if max_batch is None else max_batch
        if may_part and lane.threads > 1:
            # Even one by one, every thread has one. Few images are no faster in parts than divided among threads.
            self._largest_whole = min(self._max_batch, _LEAST * lane.threads - 1)
            self._max_batch = max(self._max_batch, lane.threads)
        self._max_queue, self._wait = limits.max_queue, limits.batch_wait
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._coming = 0  # images that have a place and are not in the queue yet
        self._computing = 0
        self._back = 0  # requests that the last batch has wholly answered, whose clients have not asked again
        self._back_until = 0.0  # when they are no longer waited for
        self._ended = 0.0  # when the last batch was answered
        self._changed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._seconds_each = 0.0  # of an image, lately

    def __len__(self) -> int:
        """Images that are decoded, wait or are computed."""
        return self._coming + len(self._queue) + self._computing

    @contextlib.contextmanager
    def reserve(self, count: int) -> Iterator[Reservation[Item, Result]]:
        """A place for so many images; refused at once where the queue has none."""
        if count > self._max_queue:  # it never has so many
            raise RefusedError(413, f"more images in a request than the queue holds ({self._max_queue}): send fewer")
        if len(self) + count > self._max_queue:
            raise RefusedError(
                429,
                f"the queue is full ({self._max_queue} images): try again later",
                retry_after=len(self) * self._seconds_each,
            )
        self._coming += count
        self._note_return()
        reservation = Reservation(self, count)
        try:
            yield reservation
        finally:
            self._coming -= reservation.release()
            self._changed.set()

    async def answer(self, items: Sequence[Item], *, reservation: Reservation[Item, Result]) -> list[Result]:
        """Put items into the queue and wait for their answers."""
        loop, now, request = asyncio.get_running_loop(), _now(), _Request(len(items))
        waiting = [_Waiting(item, loop.create_future(), now, request) for item in items]
        self._coming -= reservation.release()
        self._queue.extend(waiting)
        self._changed.set()
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        try:
            return list(await asyncio.gather(*(one.answer for one in waiting)))
        finally:
            for one in waiting:  # of a request that has ended early, nothing is computed any more
                one.answer.cancel()

    async def close(self) -> None:
        """Wait until all is answered; a request that was on its way is answered when it comes."""
        while len(self):
            await asyncio.sleep(0.01)

    async def _run(self) -> None:
        """Compute until nothing waits; the next request begins anew, and a queue that is left ends by itself."""
        try:
            while self._queue:
                await self._gather()
                async with self._lane.turn:
                    await self._compute_next()
        finally:
            self._runner = None

    async def _gather(self) -> None:
        """Wait for more while images are on their way or clients may come back, and not beyond the deadline."""
        while len(self._queue) < self._max_batch and (left := self._find_patience()) > 0.0:
            self._changed.clear()
            await _wait(self._changed, left)

    def _find_patience(self) -> float:
        """The seconds that more images are still worth waiting for.

        They count from when the first could have been computed. Clients that have just been answered ask again at once,
        or not at all: without a wait for them they and the others would take turns, in batches of half the size.
        """
        until = max(self._queue[0].since, self._ended) + self._wait
        if self._coming:
            return until - _now()
        return min(until, self._back_until) - _now() if self._back else 0.0

    def _note_return(self) -> None:
        """Expect one client less. One that was expected tells that others may be on their way, as one batch was."""
        now = _now()
        if self._back and now < self._back_until:
            self._back, self._back_until = self._back - 1, now + self._wait
        else:
            self._back = 0

    async def _compute_next(self) -> None:
        batch: list[_Waiting[Item, Result]] = []
        while self._queue and len(batch) < self._max_batch:
            one = self._queue.popleft()
            if not one.answer.done():
                batch.append(one)
        if not batch:
            return
        self._computing = len(batch)
        start = _now()
        try:
            items = [one.item for one in batch]
            results = await self._lane.run(self._compute, items, largest_whole=self._largest_whole)
        except Exception as error:
            results = [error] * len(batch)  # type: ignore[list-item]
        finally:
            self._computing = 0
        self._ended = _now()
        self._back, self._back_until = 0, self._ended + self._wait
        seconds = self._ended - start
        self._seconds_each += _FORGET * (seconds / len(batch) - self._seconds_each)
        self._note(len(batch), seconds)
        for one, result in zip(batch, results, strict=True):
            if one.answer.done():
                continue
            if isinstance(result, Exception):
                one.answer.set_exception(result)
            else:
                one.answer.set_result(result)
            one.request.left -= 1
            self._back += one.request.left == 0


def _now() -> float:
    return time.monotonic()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, and so many seconds at most."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
