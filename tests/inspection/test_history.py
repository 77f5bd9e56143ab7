"""Records of ratios: read in the order of training, thinned out for a picture."""

from typing import Any

from vitrail.inspection.history import choose_moments, read_history


def record(step: int, ratio: Any = 0.5, **changes: Any) -> dict[str, Any]:
    whole = {"kind": "layers", "stage": 0, "step": step, "epoch": step / 10, "ratios": {"feed-forward": [ratio]}}
    return whole | changes


def test_moments_come_in_the_order_of_training_each_step_once() -> None:
    records = [record(20), record(10, 0.1), record(10, 0.2), record(5, stage=1), {"kind": "train", "step": 3}]
    found = read_history(records)
    assert [(moment.stage, moment.step) for moment in found] == [(0, 10), (0, 20), (1, 5)]
    assert found[0].ratios == {"feed-forward": [0.2]}


def test_what_is_damaged_is_passed_over() -> None:
    records = [record(1, ratios=None), record(2, ratios={"x": 3}), record(3, epoch="three"), record(4, float("nan"))]
    (only,) = read_history(records)
    assert only.ratios == {"feed-forward": [None]}


def test_of_many_moments_a_few_are_drawn_from_the_first_to_the_last() -> None:
    history = read_history(record(step) for step in range(100))
    chosen = choose_moments(history)
    assert [chosen[0].step, chosen[-1].step, len(chosen)] == [0, 99, 8]
    assert choose_moments(history[:3]) == list(history[:3])
