"""Polygons and run lengths made masks: pixel by pixel what COCO's own tools make."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from vitrail.data.dense.contract import MaskWindow
from vitrail.data.dense.polygons import fill_polygons
from vitrail.data.dense.run_lengths import check_runs, fill_runs, parse_text, shrink_window

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


def unfold(window: MaskWindow, size: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(size, dtype=np.uint8)
    mask[window.top : window.top + window.values.shape[0], window.left : window.left + window.values.shape[1]] = (
        window.values
    )
    return mask


@pytest.mark.parametrize("digits", [0, 1, 9])
@pytest.mark.parametrize("low", [0, -30])
def test_polygons_are_filled_as_coco_fills_them(low: int, digits: int) -> None:
    random = np.random.RandomState(digits)
    for _ in range(60):
        size = (random.randint(1, 60), random.randint(1, 60))
        rings = [np.round(random.uniform(low, 80, (random.randint(3, 9), 2)), digits) for _ in range(2)]
        expected = coco_mask.decode(
            coco_mask.merge(coco_mask.frPyObjects([ring.ravel().tolist() for ring in rings], *size))
        )
        assert np.array_equal(unfold(fill_polygons(rings, size), size), expected)


def test_a_square_by_hand() -> None:
    window = fill_polygons([np.array([[2.0, 1.0], [5.0, 1.0], [5.0, 3.0], [2.0, 3.0]])], (6, 8))
    assert (window.top, window.left) == (1, 2)
    assert window.values.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_corners_far_away_take_no_memory_and_what_lies_outside_is_empty() -> None:
    far = np.array([[-1e12, -1e12], [1e12, -1e12], [1e12, 1e12], [-1e12, 1e12]])
    assert unfold(fill_polygons([far], (5, 7)), (5, 7)).all()
    assert fill_polygons([np.array([[20.0, 1.0], [30.0, 1.0], [30.0, 9.0]])], (10, 10)).values.size == 0


def test_run_lengths_as_text_and_as_numbers() -> None:
    random = np.random.RandomState(0)
    for _ in range(40):
        size = (random.randint(1, 200), random.randint(1, 200))
        mask = (random.uniform(size=size) < random.uniform()).astype(np.uint8)
        mask[: size[0] // 2] = 0  # long runs, which take several characters
        text = coco_mask.encode(np.asfortranarray(mask))["counts"]
        runs = check_runs(parse_text(text), size)
        assert np.array_equal(unfold(fill_runs(runs, size), size), mask)
        assert np.array_equal(parse_text(text.decode()), runs)


@pytest.mark.parametrize(("text", "told"), [("\x20", "no number"), ("P", "ends within"), ("PPPPPPPPPP1", "too long")])
def test_texts_that_are_no_run_lengths(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_text(text)


@pytest.mark.parametrize(
    ("runs", "told"), [([3, -1, 4], "negative"), ([3, 4], "have 7 pixels, the image has 6"), ([0.5], "whole numbers")]
)
def test_run_lengths_that_fit_no_image(runs: list[Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_runs(runs, (2, 3))


def test_an_empty_mask_has_no_window() -> None:
    assert shrink_window(MaskWindow(3, 4, np.zeros((5, 6), np.uint8))).values.shape == (0, 0)
