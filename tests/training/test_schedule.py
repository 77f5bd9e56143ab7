"""Learning rates at the ends, the middle and the joints of every schedule, computed by hand."""

import math
from typing import Any

import pytest

from vitrail.training.loop.schedule import Schedule


def test_cosine_goes_from_the_highest_rate_to_the_lowest() -> None:
    schedule = Schedule(lr=1.0, total_steps=8, min_lr=0.2)
    assert schedule.lr_at(0) == 1.0
    assert schedule.lr_at(2) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert schedule.lr_at(4) == pytest.approx(0.6)
    assert schedule.lr_at(7) == pytest.approx(0.2 + 0.4 * (1 + math.cos(math.pi * 7 / 8)))
    assert schedule.lr_at(8) == pytest.approx(0.2)
    assert schedule.lr_at(1000) == pytest.approx(0.2)


def test_warmup_is_linear_and_meets_the_cosine_at_its_top() -> None:
    schedule = Schedule(lr=1.0, total_steps=20, warmup_steps=4, warmup_lr=0.2)
    assert [schedule.lr_at(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert schedule.lr_at(12) == pytest.approx(0.5)  # half of the sixteen steps after the warmup
    assert schedule.lr_at(20) == pytest.approx(0.0)


def test_deits_schedule_of_300_epochs() -> None:
    epoch = 1251
    schedule = Schedule(lr=1e-3, total_steps=300 * epoch, warmup_steps=5 * epoch, warmup_lr=1e-6, min_lr=1e-5)
    assert schedule.lr_at(0) == 1e-6
    assert schedule.lr_at(5 * epoch) == 1e-3
    assert schedule.lr_at(300 * epoch - 1) == pytest.approx(1e-5, rel=1e-4)
    rates = [schedule.lr_at(step) for step in range(5 * epoch, 300 * epoch, epoch)]
    assert rates == sorted(rates, reverse=True)


def test_step_decay_counts_from_the_start_of_the_run() -> None:
    schedule = Schedule(kind="step", lr=0.1, total_steps=90, decay_steps=30, warmup_steps=5)
    at = {0: 0.0, 5: 0.1, 29: 0.1, 30: 0.01, 59: 0.01, 60: 0.001, 89: 0.001, 500: 0.001}
    assert {step: schedule.lr_at(step) for step in at} == pytest.approx(at)
    gentle = Schedule(kind="step", lr=0.1, total_steps=90, decay_steps=30, decay_rate=0.5)
    assert gentle.lr_at(60) == pytest.approx(0.025)


def test_constant_rate_after_its_warmup() -> None:
    schedule = Schedule(kind="constant", lr=5e-6, total_steps=10, warmup_steps=2)
    assert [schedule.lr_at(step) for step in (0, 1, 2, 9, 10)] == pytest.approx([0, 2.5e-6, 5e-6, 5e-6, 5e-6])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear"}, "schedule must be one of cosine, step, constant, not 'linear'"),
        ({"lr": math.inf}, "lr must be a finite number"),
        ({"min_lr": -1.0}, "min_lr must be"),
        ({"total_steps": 0}, "total_steps must be at least 1"),
        ({"warmup_steps": 10}, "warmup_steps must be fewer than the 10 steps of the run, not 10: shorten"),
        ({"kind": "step"}, "needs decay_steps"),
        ({"kind": "step", "decay_steps": 3, "decay_rate": 0.0}, "decay_rate must be"),
        ({"decay_steps": 3}, "are settings of schedule 'step', not of 'cosine'"),
        ({"kind": "constant", "min_lr": 1e-6}, "min_lr is a setting of the cosine schedule"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"lr": 0.1, "total_steps": 10, **settings})


def test_no_step_before_the_first() -> None:
    with pytest.raises(ValueError, match="there is no step -1"):
        Schedule(lr=0.1, total_steps=10).lr_at(-1)
