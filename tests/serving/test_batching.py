"""How images of many requests become batches, without a server around it."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from vitrail.serving.batching import Batcher, ComputeLane
from vitrail.serving.limits import ServingLimits


async def ask(batcher: "Batcher[int, int]", number: int) -> int:
    with batcher.reserve(1) as place:
        [found] = await place.ask([number])
        return found


def compute_with(work: Callable[[list[int]], list[int]], *, threads: int, count: int, may_part: bool) -> list[int]:
    async def run() -> list[int]:
        lane = ComputeLane(threads=threads)
        try:
            return await lane.run(work, list(range(count)), may_part=may_part)
        finally:
            lane.close()

    return asyncio.run(run())


@pytest.mark.parametrize("count", [4, 7, 16])
def test_a_batch_is_cut_into_parts_side_by_side_and_answers_keep_their_order(count: int) -> None:
    sizes, both = [], threading.Barrier(2, timeout=30)

    def work(part: list[int]) -> list[int]:
        both.wait()  # no part alone would pass
        sizes.append(len(part))
        return [number * number for number in part]

    assert compute_with(work, threads=2, count=count, may_part=True) == [number * number for number in range(count)]
    assert sorted(sizes) == [count // 2, count - count // 2]


@pytest.mark.parametrize(("count", "may_part"), [(3, True), (16, False)])
def test_few_images_and_engines_that_divide_the_work_get_it_whole(count: int, may_part: bool) -> None:
    sizes: list[int] = []

    def work(part: list[int]) -> list[int]:
        sizes.append(len(part))
        return part

    compute_with(work, threads=2, count=count, may_part=may_part)
    assert sizes == [count]


def test_clients_that_ask_again_share_batches_with_those_who_wait() -> None:
    sizes: list[int] = []

    def work(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        time.sleep(0.01)
        return numbers

    async def run() -> None:
        lane = ComputeLane(threads=1)
        batcher = Batcher(work, lane=lane, limits=ServingLimits(max_batch=8, batch_wait=1.0))

        async def client(first: int) -> None:
            await asyncio.sleep(0.002 * first)  # they come one after the other: the first batches are small
            for number in range(6):
                await ask(batcher, number)
                await asyncio.sleep(0.001)

        await asyncio.gather(*(client(first) for first in range(4)))
        await batcher.close()
        lane.close()

    start = time.monotonic()
    asyncio.run(run())
    assert sizes.count(4) >= 4  # all of them, once they are together
    assert time.monotonic() - start < 3.5  # whoever is alone at the end waits for nobody twice


def test_one_client_never_waits_for_company() -> None:
    async def run() -> float:
        lane = ComputeLane(threads=1)
        batcher: Batcher[int, int] = Batcher(
            lambda numbers: numbers, lane=lane, limits=ServingLimits(max_batch=8, batch_wait=1.0)
        )
        start = time.monotonic()
        for number in range(5):
            assert await ask(batcher, number) == number
        lane.close()
        return time.monotonic() - start

    assert asyncio.run(run()) < 0.9
