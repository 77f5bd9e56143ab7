"""How images of many requests become batches, without a server around it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from vitrail.serving.batching import Batcher, ComputeLane
from vitrail.serving.limits import ServingLimits
from vitrail.serving.refusals import RefusedError


async def ask(batcher: "Batcher[int, int]", count: int = 1) -> None:
    """Ask for so many images in one request."""
    with batcher.reserve(count) as place:
        assert await place.ask(list(range(count))) == list(range(count))


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


def test_one_by_one_as_many_images_as_threads_are_taken_at_a_time() -> None:
    taken: list[int] = []

    async def run() -> None:
        lane = ComputeLane(threads=4)
        batcher: Batcher[int, int] = Batcher(
            lambda numbers: numbers,
            lane=lane,
            limits=ServingLimits(max_batch=1),
            may_part=True,
            note=lambda count, seconds: taken.append(count),
        )
        await ask(batcher, 6)
        await batcher.close()
        lane.close()

    asyncio.run(run())
    assert taken == [4, 2]


def test_a_batch_with_less_than_two_images_a_thread_is_left_whole() -> None:
    assert sizes_of_parts(threads=16, count=16) == [16]
    assert sizes_of_parts(threads=8, count=16) == [2] * 8


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


def test_more_images_than_the_queue_ever_holds_are_not_told_to_come_back() -> None:
    async def run() -> RefusedError:
        lane = ComputeLane(threads=1)
        batcher: Batcher[int, int] = Batcher(lambda numbers: numbers, lane=lane, limits=ServingLimits(max_queue=4))
        await ask(batcher, 4)
        with pytest.raises(RefusedError, match="more images in a request than the queue holds") as caught:
            await ask(batcher, 5)
        lane.close()
        return caught.value

    refused = asyncio.run(run())
    assert (refused.status, refused.retry_after) == (413, None)


def test_a_request_that_comes_after_the_end_is_answered() -> None:
    """As of a client who began to send before all was loaded anew."""

    async def run() -> None:
        lane = ComputeLane(threads=1)
        batcher: Batcher[int, int] = Batcher(lambda numbers: numbers, lane=lane, limits=ServingLimits())
        for _ in range(2):
            await asyncio.wait_for(ask(batcher), 30.0)
            await batcher.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}  # a queue that was left keeps nothing alive
        lane.close()

    asyncio.run(run())


class Clock:
    """The time of a queue, which stands still unless it is moved, and what was waited for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        self.waits.append(round(seconds, 6))
        until = self.now + seconds
        while not event.is_set() and self.now < until:
            await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("vitrail.serving.batching._now", lambda: clock.now)
    monkeypatch.setattr("vitrail.serving.batching._wait", clock.wait)
    return clock


def run_queue(scene: "Callable[[Batcher[int, int]], Awaitable[None]]") -> list[int]:
    """Play a scene with a queue that takes 8 images at a time and waits a second; the sizes of its batches."""
    sizes: list[int] = []

    def work(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return numbers

    async def run() -> None:
        lane = ComputeLane(threads=1)
        batcher: Batcher[int, int] = Batcher(work, lane=lane, limits=ServingLimits(max_batch=8, batch_wait=1.0))
        await asyncio.wait_for(scene(batcher), 120.0)
        await batcher.close()
        lane.close()

    asyncio.run(run())
    return sizes


async def turn(condition: Callable[[], bool]) -> None:
    """Let others go on until something is so."""
    while not condition():
        await asyncio.sleep(0)


def test_clients_that_ask_again_are_waited_for_and_share_batches(clock: Clock) -> None:
    async def scene(batcher: "Batcher[int, int]") -> None:
        async def client(number: int) -> None:
            for _ in range(6):
                await ask(batcher)
                for _ in range(10 * number):  # they come back one after the other
                    await asyncio.sleep(0)

        await asyncio.gather(*(client(number) for number in range(4)))

    assert run_queue(scene) == [4] * 6
    assert clock.waits


@pytest.mark.parametrize("seconds", [0.0, 0.5, 60.0])
def test_a_single_client_waits_for_nobody(clock: Clock, seconds: float) -> None:
    async def scene(batcher: "Batcher[int, int]") -> None:
        for count in (1, 1, 4, 1, 20, 1, 8, 3, 1):
            await ask(batcher, count)
            clock.now += seconds

    assert run_queue(scene) == [1, 1, 4, 1, 8, 8, 4, 1, 8, 3, 1]
    assert clock.waits == []


def test_whoever_stays_waits_once_for_the_one_who_has_left(clock: Clock) -> None:
    async def scene(batcher: "Batcher[int, int]") -> None:
        await asyncio.gather(ask(batcher), ask(batcher, 3))
        clock.now += 0.25
        again = asyncio.create_task(ask(batcher))
        await turn(lambda: bool(clock.waits))
        clock.now += 1.0
        await again
        for _ in range(3):
            await ask(batcher)

    assert run_queue(scene) == [4, 1, 1, 1, 1]
    assert clock.waits == [1.0]


def test_clients_who_do_not_come_back_are_forgotten(clock: Clock) -> None:
    async def scene(batcher: "Batcher[int, int]") -> None:
        await asyncio.gather(*(ask(batcher) for _ in range(4)))
        clock.now += 1.0
        await ask(batcher)

    assert run_queue(scene) == [4, 1]
    assert clock.waits == []


def test_a_request_that_was_given_up_is_not_expected_back(clock: Clock) -> None:
    async def scene(batcher: "Batcher[int, int]") -> None:
        first, other = asyncio.create_task(ask(batcher)), asyncio.create_task(ask(batcher))
        await turn(lambda: batcher._computing == 2)
        other.cancel()
        await first
        await ask(batcher)

    assert run_queue(scene) == [2, 1]
    assert clock.waits == []


def test_images_that_are_being_decoded_are_waited_for(clock: Clock) -> None:
    async def scene(batcher: "Batcher[int, int]") -> None:
        with batcher.reserve(1) as place:
            other = asyncio.create_task(ask(batcher))
            await turn(lambda: bool(clock.waits))
            assert await place.ask([7]) == [7]
        await other

    assert run_queue(scene) == [2]
    assert clock.waits == [1.0]
