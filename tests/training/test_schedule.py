"""Learning rates at the ends, the middle and the joints of every schedule, computed by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
from shrunk import small_model
from tiny_runs import run_in

from vitrail.settings.learning import OptimizerSettings, ScheduleSettings
from vitrail.training.loop.schedule import ValueSchedule, set_schedules
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint


def test_cosine_goes_from_the_highest_rate_to_the_lowest() -> None:
    schedule = ValueSchedule(start=1.0, total_steps=8, end=0.2)
    assert schedule.at(0) == 1.0
    assert schedule.at(2) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert schedule.at(4) == pytest.approx(0.6)
    assert schedule.at(7) == pytest.approx(0.2 + 0.4 * (1 + math.cos(math.pi * 7 / 8)))
    assert schedule.at(8) == pytest.approx(0.2)
    assert schedule.at(1000) == pytest.approx(0.2)


def test_warmup_is_linear_and_meets_the_cosine_at_its_top() -> None:
    schedule = ValueSchedule(start=1.0, total_steps=20, warmup_steps=4, warmup_start=0.2)
    assert [schedule.at(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert schedule.at(12) == pytest.approx(0.5)  # half of the sixteen steps after the warmup
    assert schedule.at(20) == pytest.approx(0.0)


def test_deits_schedule_of_300_epochs() -> None:
    epoch = 1251
    schedule = ValueSchedule(start=1e-3, total_steps=300 * epoch, warmup_steps=5 * epoch, warmup_start=1e-6, end=1e-5)
    assert schedule.at(0) == 1e-6
    assert schedule.at(5 * epoch) == 1e-3
    assert schedule.at(300 * epoch - 1) == pytest.approx(1e-5, rel=1e-4)
    rates = [schedule.at(step) for step in range(5 * epoch, 300 * epoch, epoch)]
    assert rates == sorted(rates, reverse=True)


def test_step_decay_counts_from_the_start_of_the_run() -> None:
    schedule = ValueSchedule(kind="step", start=0.1, total_steps=90, decay_steps=30, warmup_steps=5)
    at = {0: 0.0, 5: 0.1, 29: 0.1, 30: 0.01, 59: 0.01, 60: 0.001, 89: 0.001, 500: 0.001}
    assert {step: schedule.at(step) for step in at} == pytest.approx(at)
    gentle = ValueSchedule(kind="step", start=0.1, total_steps=90, decay_steps=30, decay_rate=0.5)
    assert gentle.at(60) == pytest.approx(0.025)


def test_constant_rate_after_its_warmup() -> None:
    schedule = ValueSchedule(kind="constant", start=5e-6, total_steps=10, warmup_steps=2)
    assert [schedule.at(step) for step in (0, 1, 2, 9, 10)] == pytest.approx([0, 2.5e-6, 5e-6, 5e-6, 5e-6])


def test_any_quantity_may_rise_and_go_in_a_line() -> None:
    momentum = ValueSchedule(start=0.996, end=1.0, total_steps=10)  # of a moving teacher
    assert [momentum.at(step) for step in (0, 5, 10)] == pytest.approx([0.996, 0.998, 1.0])
    temperature = ValueSchedule(kind="constant", start=0.07, warmup_steps=4, warmup_start=0.04, total_steps=10)
    assert [temperature.at(step) for step in (0, 2, 4, 9)] == pytest.approx([0.04, 0.055, 0.07, 0.07])
    line = ValueSchedule(kind="linear", start=1.0, end=0.2, total_steps=8)
    assert [line.at(step) for step in (0, 2, 8, 99)] == pytest.approx([1.0, 0.8, 0.2, 0.2])


def test_weight_decay_goes_by_a_cosine_and_what_has_none_gets_none() -> None:
    optimizer = OptimizerSettings(weight_decay=0.04, layer_decay=0.5).build(small_model("deit_tiny"))
    schedules = ScheduleSettings(weight_decay_end=0.4).build(
        lr=1.0, weight_decay=0.04, steps_per_epoch=1, total_steps=8
    )
    for step, expected in ((0, 0.04), (4, 0.22), (8, 0.4)):
        set_schedules(optimizer, schedules, step=step)
        decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
        for name, decay in decays.items():
            assert decay == (0.0 if name.endswith("no_decay") else pytest.approx(expected))


def test_a_run_sets_the_weight_decay_of_its_steps(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "optimizer.weight_decay=0.04", "schedule.weight_decay_end=0.4", "epochs=1")
    newest = Checkpoints(run.checkpoints).newest()
    assert newest is not None
    groups = load_checkpoint(newest)["optimizer"]["param_groups"]
    last = 0.4 - 0.36 * 0.5 * (1 + math.cos(math.pi * 2 / 3))  # of the third step of three
    assert {group["name"]: group["weight_decay"] for group in groups} == {
        "decay": pytest.approx(last),
        "no_decay": 0.0,
    }


def test_a_constant_weight_decay_is_left_as_it_was_built() -> None:
    assert ScheduleSettings().build(lr=1.0, weight_decay=0.1, steps_per_epoch=1, total_steps=8).weight_decay is None


def test_steps_at_milestones() -> None:  # the x3 schedule of detection: a tenth at epochs 27 and 33 of 36
    settings = ScheduleSettings(kind="step", milestones=(27.0, 33.0), warmup_epochs=0.0)
    schedule = settings.build(lr=1e-4, steps_per_epoch=10, total_steps=360).lr
    rates = [schedule.at(step) for step in (0, 269, 270, 329, 330, 359, 1000)]
    assert rates == pytest.approx([1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-6, 1e-6])
    for wrong in ({"milestones": (33.0, 27.0)}, {"milestones": (27.0,), "decay_epochs": 3.0}):
        with pytest.raises(ValueError, match="milestones"):
            ScheduleSettings(kind="step", **wrong)
    other = ScheduleSettings(kind="cosine", milestones=(3.0,))
    assert "milestones" in other.unused()
    assert other.build(lr=1.0, steps_per_epoch=1, total_steps=9).lr.at(8) < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linaer"}, "schedule must be one of cosine, linear, step, constant, inverse_sqrt, not 'linaer'"),
        ({"start": math.inf}, "start of a schedule must be a finite number"),
        ({"end": math.nan}, "end of a schedule must be"),
        ({"total_steps": 0}, "total_steps must be at least 1"),
        ({"warmup_steps": 10}, "warmup_steps must be fewer than the 10 steps of the run, not 10: shorten"),
        ({"kind": "step"}, "needs decay_steps"),
        ({"kind": "step", "decay_steps": 3, "decay_rate": 0.0}, "decay_rate must be"),
        ({"decay_steps": 3}, "are settings of schedule 'step', not of 'cosine'"),
        ({"kind": "constant", "end": 1e-6}, "cosine and linear have an end: leave it out of 'constant'"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ValueSchedule(**{"start": 0.1, "total_steps": 10, **settings})


def test_no_step_before_the_first() -> None:
    with pytest.raises(ValueError, match="there is no step -1"):
        ValueSchedule(start=0.1, total_steps=10).at(-1)


def test_the_inverse_square_root_falls_from_the_end_of_the_warmup() -> None:
    schedule = ScheduleSettings(kind="inverse_sqrt", warmup_steps=100, warmup_lr=0.0).build(
        lr=0.8, steps_per_epoch=10, total_steps=1000
    )
    assert [schedule.lr.at(step) for step in (0, 50, 100, 400, 900)] == pytest.approx([0.0, 0.4, 0.8, 0.4, 0.8 / 3])
    constant = ScheduleSettings(kind="constant", warmup_steps=32_000).build(
        lr=0.2, steps_per_epoch=10, total_steps=100_000
    )
    assert constant.lr.at(32_000) == constant.lr.at(99_999) == 0.2
