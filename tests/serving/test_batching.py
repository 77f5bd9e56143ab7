"""How images of many requests become batches, without a server around it."""

import asyncio
import threading
import time

import pytest

from vitrail.serving.batching import Batcher, ComputeLane
from vitrail.serving.limits import ServingLimits


async def ask(batcher: "Batcher[int, int]", number: int) -> int:
    with batcher.reserve(1) as place:
        [found] = await place.ask([number])
        return found


def sizes_of_parts(*, threads: int, count: int, max_batch: int = 16, may_part: bool = True) -> list[int]:
    """How many images are computed at a time, of so many that wait."""
    sizes: list[int] = []

    def square(part: list[int]) -> list[int]:
        sizes.append(len(part))
        return [number * number for number in part]

    async def run() -> None:
        lane = ComputeLane(threads=threads)
        batcher: Batcher[int, int] = Batcher(
            square, lane=lane, limits=ServingLimits(max_batch=max_batch), may_part=may_part
        )
        with batcher.reserve(count) as place:
            assert await place.ask(list(range(count))) == [number * number for number in range(count)]
        await batcher.close()
        lane.close()

    asyncio.run(run())
    return sorted(sizes)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (3, [3]), (4, [2, 2]), (7, [3, 4]), (16, [8, 8]), (20, [2, 2, 8, 8])]
)
def test_a_batch_is_cut_into_parts_and_answers_keep_their_order(count: int, sizes: list[int]) -> None:
    assert sizes_of_parts(threads=2, count=count) == sizes


def test_engines_that_divide_the_work_get_it_whole() -> None:
    assert sizes_of_parts(threads=2, count=16, may_part=False) == [16]


def test_one_by_one_every_thread_has_one() -> None:
    assert sizes_of_parts(threads=2, count=5, max_batch=1) == [1] * 5
    assert sizes_of_parts(threads=8, count=5, max_batch=1) == [1] * 5
    assert sizes_of_parts(threads=1, count=3, max_batch=1) == [1] * 3


def test_parts_are_computed_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)  # no part alone would pass

    def work(part: list[int]) -> list[int]:
        both.wait()
        return part

    async def run() -> list[int]:
        lane = ComputeLane(threads=2)
        found = await lane.run(work, [1, 2, 3], largest_whole=2)
        lane.close()
        return found

    assert asyncio.run(run()) == [1, 2, 3]


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
