"""Turns at something slow, such as a gallery's database: a few at a time, and a bounded number of others that wait."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from vitrail.serving.decoding import Workers
from vitrail.serving.refusals import RefusedError

Result = TypeVar("Result")


class Turns:
    """Threads of their own for work that may hang, so that nothing else waits for it.

    What has begun goes on to its end and keeps its thread, also for a client that has gone; what waits is begun for
    nobody then. More than `most` that wait are refused.
    """

    def __init__(self, count: int, *, most: int, status: int, what: str) -> None:
        self._workers, self._free = Workers(count), asyncio.Semaphore(count)
        self._most, self._status, self._what = most, status, what
        self._num_waiting = 0

    def check(self) -> None:
        """Refuse one more where as many as may wait do."""
        if self._num_waiting >= self._most:
            raise RefusedError(self._status, f"too many {self._what} wait: try again later", retry_after=1.0)

    async def run(self, work: Callable[[], Result]) -> Result:
        """What the work gives, when it is its turn."""
        self.check()
        self._num_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._num_waiting -= 1
        begun = asyncio.ensure_future(self._workers.run(work))
        begun.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(begun)

    def close(self) -> None:
        """End the threads."""
        self._workers.close()
