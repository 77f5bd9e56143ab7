"""Lanes: results in order, what is raised in one, the threads of torch before and after, and few items ahead."""

import threading
import time
from collections.abc import Generator, Iterator

import pytest
import torch

from vitrail.data.blend import Normalize
from vitrail.data.contract import ImageBatch
from vitrail.evaluation.lanes import Lanes, keep_threads
from vitrail.evaluation.predict import predict


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_items(count: int) -> None:
    def square(number: int) -> int:
        time.sleep(0.002 * (5 - number % 5))
        return number * number

    with Lanes(count) as lanes:
        assert list(lanes.map(square, range(20))) == [number * number for number in range(20)]
        assert 0.0 <= lanes.share_of_core() <= 1.0


def test_lanes_compute_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=30.0)
    with Lanes(2) as lanes:
        assert sorted(lanes.map(lambda _: meeting.wait(), range(2))) == [0, 1]


def test_what_a_lane_raises_is_raised_and_the_others_end() -> None:
    def refuse(number: int) -> int:
        if number == 2:
            raise ValueError("two is refused")
        return number

    with Lanes(2) as lanes:
        with pytest.raises(ValueError, match="two is refused"):
            list(lanes.map(refuse, range(10)))
        assert list(lanes.map(abs, [-1])) == [1]


def test_items_are_taken_a_few_ahead_only() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with Lanes(2) as lanes:
        results = lanes.map(abs, items())
        assert isinstance(results, Generator)
        next(results)
        assert len(taken) <= 5
        results.close()


def test_the_threads_of_torch_are_what_they_were() -> None:
    before = torch.get_num_threads()
    with Lanes(2, threads=1) as lanes:
        assert set(lanes.map(lambda _: torch.get_num_threads(), range(4))) == {1}
    assert torch.get_num_threads() == before


def test_answers_are_the_same_bits_in_any_number_of_lanes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
    batches = [
        ImageBatch(torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8), torch.zeros(4), torch.arange(4) + 4 * number)
        for number in range(6)
    ]
    found = [
        [
            (logits, batch.indices)
            for logits, batch in predict(
                model, iter(batches), normalize=Normalize(), device=torch.device("cpu"), num_lanes=count
            )
        ]
        for count in (1, 3)
    ]
    for one, three in zip(*found, strict=True):
        assert torch.equal(one[0], three[0])
        assert torch.equal(one[1], three[1])


def test_a_thread_keeps_its_number_of_threads_whatever_others_set_before_its_first_operation() -> None:
    before = torch.get_num_threads()
    begun, may_go, found = threading.Event(), threading.Event(), []

    def compute() -> None:
        keep_threads(1)
        begun.set()
        may_go.wait(30)
        found.append(torch.get_num_threads())  # as an operation would ask

    thread = threading.Thread(target=compute)
    thread.start()
    begun.wait(30)
    torch.set_num_threads(2)
    may_go.set()
    thread.join()
    torch.set_num_threads(before)
    assert found == [1]
