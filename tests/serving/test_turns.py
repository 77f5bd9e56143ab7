"""Turns at what may hang: what has begun ends, what waits is bounded, and is begun for nobody who has gone."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vitrail.serving.refusals import RefusedError
from vitrail.serving.turns import Turns

_PATIENCE = 120.0


def run(ask: Callable[[Turns, threading.Event], Awaitable[Any]]) -> Any:
    """What comes of asking by one turn at a time, for which two may wait."""

    async def go() -> Any:
        turns, released = Turns(1, most=2, status=429, what="changes"), threading.Event()
        try:
            return await asyncio.wait_for(ask(turns, released), _PATIENCE)
        finally:
            released.set()
            turns.close()

    return asyncio.run(go())


def test_more_than_may_wait_are_refused() -> None:
    async def ask(turns: Turns, released: threading.Event) -> list[int]:
        waiting = [asyncio.create_task(turns.run(lambda: int(released.wait(_PATIENCE)))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="too many changes wait") as caught:
            await turns.run(lambda: 0)
        assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
        released.set()
        return await asyncio.gather(*waiting)

    assert run(ask) == [1, 1, 1]


def test_what_waits_is_not_begun_for_one_who_has_gone_and_what_has_begun_ends() -> None:
    seen: list[str] = []

    async def ask(turns: Turns, released: threading.Event) -> None:
        begun = threading.Event()

        def hang() -> None:
            begun.set()
            assert released.wait(_PATIENCE)
            seen.append("first")

        first, second = asyncio.create_task(turns.run(hang)), asyncio.create_task(turns.run(lambda: seen.append("no")))
        await asyncio.to_thread(begun.wait, _PATIENCE)
        third = asyncio.create_task(turns.run(lambda: seen.append("third")))
        await asyncio.sleep(0)
        for gone in (first, second):
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        turns.check()  # there is a place to wait
        fourth = asyncio.create_task(turns.run(lambda: seen.append("fourth")))
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(RefusedError):  # the first goes on, and has the only turn
            turns.check()
        released.set()
        await asyncio.gather(third, fourth)

    run(ask)
    assert seen == ["first", "third", "fourth"]


def test_work_that_fails_gives_its_turn_back() -> None:
    async def ask(turns: Turns, released: threading.Event) -> str:
        def fail() -> None:
            raise OSError("no space left")

        for _ in range(4):
            with pytest.raises(OSError, match="no space left"):
                await turns.run(fail)
        return await turns.run(lambda: "well")

    assert run(ask) == "well"
