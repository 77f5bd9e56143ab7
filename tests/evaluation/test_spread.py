"""Effective rank and deviation of features, by hand."""

import math

import pytest
import torch

from vitrail.evaluation.spread import effective_rank, feature_deviation


def test_effective_rank_counts_even_directions() -> None:
    """RankMe: equal singular values count their number; one direction counts one, however long."""
    assert effective_rank(torch.eye(8)[:5]) == pytest.approx(5.0, rel=1e-4)
    assert effective_rank(torch.ones(20, 8)) == pytest.approx(1.0, rel=1e-4)
    assert effective_rank(torch.zeros(4, 8)) == 1.0
    # Singular values 3 and 1: exp of the entropy of shares 3/4 and 1/4.
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    wide, tall = torch.diag(torch.tensor([3.0, 1.0, 0.0])), torch.zeros(9, 2)
    tall[0, 0], tall[4, 1] = 3.0, 1.0
    assert effective_rank(wide) == pytest.approx(expected, rel=1e-4)
    assert effective_rank(tall) == pytest.approx(expected, rel=1e-4)


def test_feature_deviation_is_of_directions() -> None:
    same = torch.tensor([[1.0, 2.0, 2.0]]) * torch.tensor([[1.0], [5.0], [0.1]])
    assert feature_deviation(same) == pytest.approx(0.0, abs=1e-7)
    # Two opposite directions: one channel deviates by 1, the other by 0.
    assert feature_deviation(torch.tensor([[2.0, 0.0], [-3.0, 0.0]])) == pytest.approx(0.5)
    spread = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert feature_deviation(spread) == pytest.approx(1 / math.sqrt(64), rel=0.01)
