"""A run that other programs hold up says so once, and one that holds itself up does not."""

import pytest

from vitrail.evaluation.lanes import Lanes
from vitrail.training.loop import held_up
from vitrail.training.loop.held_up import HeldUp


@pytest.mark.parametrize(
    ("share", "used", "expected"),
    [(0.5, 1.0, [False, False, True, False]), (0.5, 2.0, [False] * 4), (0.95, 1.2, [False] * 4)],
)
def test_only_other_programs_are_news_and_once(
    monkeypatch: pytest.MonkeyPatch, share: float, used: float, expected: list[bool]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(held_up.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(held_up.time, "process_time", lambda: used * clock[0])
    with Lanes(2) as lanes:
        monkeypatch.setattr(lanes, "share_of_core", lambda: share)
        watch = HeldUp(lanes)
        told = []
        for _ in range(4):
            clock[0] += 2.0
            told.append(watch.look().is_news)
    assert told == expected
