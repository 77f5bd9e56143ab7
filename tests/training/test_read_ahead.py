"""Reading one step ahead: in order, once, and what goes wrong is told when the item is asked for."""

from collections.abc import Iterator

import pytest

from vitrail.training.loop.read_ahead import ReadAhead


def test_items_come_in_order_and_errors_when_they_are_asked_for() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            taken.append(number)
            yield number
        raise ValueError("the disk is gone")

    steps = ReadAhead(items())
    steps.read()
    steps.read()
    assert taken == [0]
    assert [next(steps), next(steps)] == [0, 1]
    steps.read()
    assert next(steps) == 2
    steps.read()
    with pytest.raises(ValueError, match="the disk is gone"):
        next(steps)


def test_the_end_is_the_end() -> None:
    steps = ReadAhead(iter([1]))
    steps.read()
    assert list(steps) == [1]
