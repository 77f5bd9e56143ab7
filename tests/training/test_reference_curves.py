"""Published curves: interpolated by hand, a band that narrows, and when a run left it."""

import pytest

from vitrail.training.runs.reference_curves import ReferenceCurve, compare, load_curve, load_curves

STRAIGHT = ReferenceCurve(
    name="straight", model="none", epochs=20, image_size=224, every=5, top1=(0.0, 40.0, 60.0, 70.0, 80.0)
)


@pytest.mark.parametrize(
    ("fraction", "top1"), [(0.0, 0.0), (0.125, 20.0), (0.25, 40.0), (0.6, 64.0), (0.75, 70.0), (1.0, 80.0), (1.2, 80.0)]
)
def test_between_two_points_the_curve_is_straight(fraction: float, top1: float) -> None:
    assert STRAIGHT.at(fraction) == pytest.approx(top1)


@pytest.mark.parametrize(
    ("epoch", "low", "high"),
    [
        (0, 0.0, 17.0),  # 0 +- (1 + 80 / 5), and no accuracy is below 0
        (5, 31.0, 49.0),  # 40 +- (1 + 40 / 5)
        (15, 67.0, 73.0),  # 70 +- (1 + 10 / 5)
        (20, 79.0, 81.0),  # 80 +- 1
    ],
)
def test_the_band_narrows_towards_the_end(epoch: float, low: float, high: float) -> None:
    verdict = compare(STRAIGHT, epoch, 50.0)
    assert (verdict.low, verdict.high) == pytest.approx((low, high))


def test_a_shorter_run_is_compared_at_the_same_part_of_its_way() -> None:
    assert compare(STRAIGHT, 5, 60.0, epochs=10).published == pytest.approx(60.0)
    assert compare(STRAIGHT, 5, 60.0).published == pytest.approx(40.0)


def test_the_side_is_named() -> None:
    assert [compare(STRAIGHT, 20, top1).side for top1 in (78.9, 79.0, 80.9, 81.2)] == [
        "below",
        "inside",
        "inside",
        "above",
    ]
    assert compare(STRAIGHT, 20, 78.9, band=2.0).is_inside


@pytest.mark.parametrize("name", list(load_curves()))
def test_every_published_curve_has_a_point_every_five_epochs_and_keeps_to_itself(name: str) -> None:
    curve = load_curve(name)
    assert len(curve.top1) == curve.epochs / curve.every + 1
    own = [(index * curve.every, top1) for index, top1 in enumerate(curve.top1)]
    assert all(compare(curve, epoch, top1).is_inside for epoch, top1 in own)


def test_published_curves_end_where_the_thesis_says() -> None:
    ends = {name: curve.top1[-1] for name, curve in load_curves().items()}
    assert len(ends) == 18
    # Tables 6.7 and 6.8.
    for name, top1 in {
        "deit3_small_800": 81.4,
        "deit3_base_224_finetuning": 83.8,
        "deit3_large_224_finetuning": 84.9,
        "deit3_huge_224_finetuning": 85.2,
        "deit3_small_384_finetuning": 83.4,
        "deit3_base_384_finetuning": 85.0,
        "deit3_large_384_finetuning": 85.8,
        "deit3_small_21k_to_1k": 83.1,
        "deit3_base_21k_to_1k": 85.7,
        "deit3_large_21k_to_1k": 87.0,
        "deit3_huge_21k_to_1k": 87.2,
    }.items():
        assert ends[name] == pytest.approx(top1, abs=0.1)


def test_an_unknown_curve_is_one_line_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no published curve is called 'deit3_smal_800': .*deit3_small_800"):
        load_curve("deit3_smal_800")
