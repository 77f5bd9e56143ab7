"""keep_mass: the fewest cells that hold a share of a map."""

import pytest
import torch
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail.explain.thresholds import keep_mass


def test_the_greatest_cells_are_kept_until_the_share_is_reached() -> None:
    values = torch.tensor([[0.1, 0.4], [0.3, 0.2]])
    assert keep_mass(values, 0.39).tolist() == [[False, True], [False, False]]
    assert keep_mass(values, 0.6).tolist() == [[False, True], [True, False]]
    assert keep_mass(values, 0.71).tolist() == [[False, True], [True, True]]
    assert keep_mass(values, 1).all()


def test_each_map_is_thresholded_by_its_own_sum_and_negative_values_are_nothing() -> None:
    maps = torch.stack([torch.tensor([[4.0, -9.0], [3.0, 1.0]]), torch.tensor([[-1.0, 0.0], [0.0, -2.0]])])
    assert keep_mass(maps[None], 0.9).tolist() == [[[[True, False], [True, True]], [[False, False], [False, False]]]]
    assert keep_mass(maps, 0.5)[0].tolist() == [[True, False], [False, False]]


def test_it_is_what_sorting_upward_and_cutting_the_lowest_mass_gives() -> None:
    """As DINO's figures are made: cells whose cumulated sum, from the least on, is above 1 - share."""
    maps = torch.rand(5, 7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for own, found in zip(maps, keep_mass(maps, 0.6), strict=True):
        values, order = (own / own.sum()).flatten().sort()
        expected = torch.zeros(63, dtype=torch.bool)
        expected[order] = values.cumsum(dim=0) > 1 - 0.6
        assert torch.equal(found, expected.view(7, 9))


def test_maps_of_a_model_have_masks() -> None:
    model = randomize(small_model("cait_xxs24")).eval()
    found = vitrail.attention_maps(model, images_for(model))
    masks = found.masks(0.6)
    assert masks.shape == found.maps.shape
    assert masks.dtype == torch.bool
    held = (found.maps * masks).sum(dim=(-2, -1)) / found.maps.sum(dim=(-2, -1))
    assert held.min() >= 0.6


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), True, "0.6"])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and at most 1, such as"):
        keep_mass(torch.ones(2, 2), share)
