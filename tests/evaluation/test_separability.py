"""Random sub-labels: even halves of every class, what a linear classifier makes of them, and conditioning by hand."""

import math

import numpy as np
import pytest
import torch

from vitrail.data.contract import Level
from vitrail.evaluation.separability import condition_parts, draw_sublabels, measure_separability


def two_classes(count: int) -> Level:
    return Level(("cat", "dog"), np.arange(count) % 2)


def test_every_class_is_split_evenly_and_at_random() -> None:
    level = Level(("cat", "dog"), np.array([0, 1, 0, 1, 0, -1, 0, 1]))
    sub = draw_sublabels(level)
    assert sub.classes == ("cat 1", "cat 2", "dog 1", "dog 2")
    known = level.labels >= 0
    assert (sub.labels[known] // 2 == level.labels[known]).all()
    assert sub.labels[5] == -1
    assert np.bincount(sub.labels[known]).tolist() == [2, 2, 2, 1]
    splits = {tuple(draw_sublabels(level, seed=seed).labels) for seed in range(10)}
    assert len(splits) > 3
    assert (draw_sublabels(level, seed=4).labels == draw_sublabels(level, seed=4).labels).all()
    assert np.bincount(draw_sublabels(two_classes(12), num_parts=3).labels).tolist() == [2] * 6


def test_embeddings_that_spread_images_out_can_be_told_apart_and_collapsed_ones_not() -> None:
    level = two_classes(40)
    centres = torch.eye(2)[torch.from_numpy(level.labels)]
    spread = torch.cat([centres, torch.eye(40)], dim=1)  # a direction of its own for every image
    assert measure_separability(spread, level, num_splits=2).top1 == 100.0
    collapsed = measure_separability(centres, level, num_splits=2)
    assert collapsed.top1 == pytest.approx(50.0)  # the class is told, its halves are not
    assert collapsed.conditional is None


def test_mean_and_deviation_are_over_the_splits() -> None:
    level = two_classes(60)
    vectors = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    single = [_top1_of_scikit_learn(vectors, draw_sublabels(level, seed=seed)) for seed in range(3)]
    counted: list[int] = []
    found = measure_separability(vectors, level, num_splits=3, advance=counted.append)
    assert found.top1 == pytest.approx(np.mean(single), abs=2.0)
    assert found.deviation == pytest.approx(np.std(single, ddof=1), abs=2.0)
    assert counted == [1, 1, 1]


def _top1_of_scikit_learn(vectors: torch.Tensor, sub: Level) -> float:
    """On the training images."""
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    fitted = linear_model.LogisticRegression(C=1e3, max_iter=1000).fit(vectors.numpy(), sub.labels)
    return 100.0 * float((fitted.predict(vectors.numpy()) == sub.labels).mean())


def test_conditioning_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0), 5.0, 5.0]])
    found = condition_parts(logits, torch.tensor([[0.8, 0.2]]), num_parts=2)
    assert found.exp().tolist()[0] == pytest.approx([0.8 / 4, 0.8 * 3 / 4, 0.1, 0.1])


def test_a_coarse_classifier_that_knows_better_helps() -> None:
    level = two_classes(80)
    vectors = torch.randn(80, 10, generator=torch.Generator().manual_seed(0))  # nothing of the class is in them
    known = torch.eye(2)[torch.from_numpy(level.labels)]
    found = measure_separability(vectors, level, probabilities=known, num_splits=2)
    assert found.conditional is not None
    assert found.conditional > found.top1 + 5.0


def test_what_can_not_be_split_is_one_line() -> None:
    with pytest.raises(ValueError, match="one label for each image"):
        draw_sublabels(Level(("a", "b"), np.zeros((3, 2), dtype=bool)))
    with pytest.raises(ValueError, match="at least 2 parts, not 1"):
        draw_sublabels(two_classes(4), num_parts=1)
    with pytest.raises(ValueError, match="no image has a label"):
        measure_separability(torch.zeros(3, 2), Level(("a",), np.full(3, -1)))
    with pytest.raises(ValueError, match="number of random splits must be at least 1, not 0"):
        measure_separability(torch.zeros(4, 2), two_classes(4), num_splits=0)
