"""Cumulative energy of features whose principal components are known."""

import numpy as np
import pytest
import torch

from vitrail.evaluation.energy import cumulative_energy


def test_the_energy_of_a_known_covariance() -> None:
    # Variances 9, 1 and 0 along the axes, away from the origin.
    points = torch.tensor([[3.0, 1.0, 0.0], [-3.0, 1.0, 0.0], [3.0, -1.0, 0.0], [-3.0, -1.0, 0.0]]) + 7.0
    energy = cumulative_energy(points)
    assert energy.dtype == torch.float64
    assert energy.tolist() == pytest.approx([0.9, 1.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("shape", [(40, 6), (5, 12), (8, 8), (3, 1)])
def test_it_is_that_of_the_singular_values_and_ends_at_one(shape: tuple[int, int]) -> None:
    features = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    centred = features.double().numpy() - features.double().numpy().mean(axis=0)
    squares = np.linalg.svd(centred, compute_uv=False) ** 2
    energy = cumulative_energy(features)
    assert energy.shape == (min(shape),)
    assert energy.tolist() == pytest.approx((squares.cumsum() / squares.sum()).tolist(), abs=1e-10)
    assert energy[-1] == 1.0


def test_features_that_are_all_the_same_have_no_components() -> None:
    with pytest.raises(ValueError, match="all 5 features are the same: they have no principal components"):
        cumulative_energy(torch.randn(1, 8).expand(5, 8))
    with pytest.raises(ValueError, match="all 1 features are the same"):
        cumulative_energy(torch.randn(1, 8))


def test_what_is_not_a_table_of_finite_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"features \[images, dim\], not of \[2, 3, 4\]"):
        cumulative_energy(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="not finite"):
        cumulative_energy(torch.tensor([[1.0, float("nan")], [0.0, 1.0]]))
