"""Images of many requests computed together: a bounded queue for each model, and a batch when waiting is no use."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from vitrail.serving.limits import ServingLimits
from vitrail.serving.refusals import RefusedError

Item = TypeVar("Item")
Result = TypeVar("Result")
_FORGET = 0.2  # weight of the newest batch in the mean time of an image


class ComputeLane:
    """The one thread that computes: torch divides its work among the cores, and batches of all models take turns."""

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="compute", initializer=torch.set_num_threads, initargs=(self.threads,)
        )
        self.turn = asyncio.Lock()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """What the work gives, computed in the thread; whoever waits for a turn must have it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    answer: "asyncio.Future[Result]"
    since: float


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
    is raised to the one who asked. All methods belong to the event loop's thread.
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Sequence[Result | RefusedError]],
        *,
        lane: ComputeLane,
        limits: ServingLimits,
        max_batch: int | None = None,
        note: Callable[[int, float], object] = lambda count, seconds: None,
    ) -> None:
        self._compute, self._lane, self._note = compute, lane, note
        self._max_batch = limits.max_batch if max_batch is None else max_batch
        self._max_queue, self._wait = limits.max_queue, limits.batch_wait
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._coming = 0  # images that have a place and are not in the queue yet
        self._computing = 0
        self._changed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._seconds_each = 0.0  # of an image, lately

    def __len__(self) -> int:
        """Images that are decoded, wait or are computed."""
        return self._coming + len(self._queue) + self._computing

    @contextlib.contextmanager
    def reserve(self, count: int) -> Iterator[Reservation[Item, Result]]:
        """A place for so many images; refused at once where the queue has none."""
        if len(self) + count > self._max_queue:
            raise RefusedError(
                429,
                f"the queue is full ({self._max_queue} images): try again later",
                retry_after=len(self) * self._seconds_each,
            )
        self._coming += count
        reservation = Reservation(self, count)
        try:
            yield reservation
        finally:
            self._coming -= reservation.release()
            self._changed.set()

    async def answer(self, items: Sequence[Item], *, reservation: Reservation[Item, Result]) -> list[Result]:
        """Put items into the queue and wait for their answers."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        waiting = [_Waiting(item, loop.create_future(), now) for item in items]
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
        """Wait until all is answered, then end."""
        while len(self):
            await asyncio.sleep(0.01)
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._changed.clear()
                await self._changed.wait()
            await self._gather()
            async with self._lane.turn:
                await self._compute_next()

    async def _gather(self) -> None:
        """Wait for more while images are on their way, and not beyond the deadline of the first."""
        until = self._queue[0].since + self._wait
        while self._coming and len(self._queue) < self._max_batch and (left := until - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def _compute_next(self) -> None:
        batch: list[_Waiting[Item, Result]] = []
        while self._queue and len(batch) < self._max_batch:
            one = self._queue.popleft()
            if not one.answer.done():
                batch.append(one)
        if not batch:
            return
        self._computing = len(batch)
        start = time.monotonic()
        try:
            results = await self._lane.run(self._compute, [one.item for one in batch])
        except Exception as error:
            results = [error] * len(batch)  # type: ignore[list-item]
        finally:
            self._computing = 0
        seconds = time.monotonic() - start
        self._seconds_each += _FORGET * (seconds / len(batch) - self._seconds_each)
        self._note(len(batch), seconds)
        for one, result in zip(batch, results, strict=True):
            if one.answer.done():
                continue
            if isinstance(result, Exception):
                one.answer.set_exception(result)
            else:
                one.answer.set_result(result)
