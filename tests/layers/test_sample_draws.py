"""Draws that belong to a sample: the same in any part of a batch, and fair."""

import pytest
import torch
from torch import nn

from vitrail.layers.sample_draws import Dropout, DropPath, SampleDraws, give_draws


def row_of_layers(rate: float = 0.25, depth: int = 3) -> nn.Sequential:
    return nn.Sequential(*[DropPath(rate) for _ in range(depth)])


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop = DropPath(0.25)
    for _ in range(2):
        kept = drop(torch.ones(10_000, 3, 2))
        assert kept.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
        assert torch.equal(kept.amin(dim=(1, 2)), kept.amax(dim=(1, 2)))
        assert kept.mean().item() == pytest.approx(1.0, abs=0.02)
        give_draws(drop).begin(7, first=0, num_samples=10_000)  # the second time
    x = torch.randn(4, 3)
    assert torch.equal(drop.eval()(x), x)


def test_dropout_drops_numbers_and_keeps_the_mean() -> None:
    drop = Dropout(0.1)
    give_draws(drop).begin(3, first=0, num_samples=8)
    kept = drop(torch.ones(8, 50, 33))
    assert kept.unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
    assert kept.mean().item() == pytest.approx(1.0, abs=0.01)
    per_sample = (kept == 0.0).float().mean(dim=(1, 2))
    assert per_sample.min() > 0.07
    assert per_sample.max() < 0.13


@pytest.mark.parametrize("make", [DropPath, Dropout])
def test_what_a_sample_gets_does_not_depend_on_its_part_of_the_batch(make: type[nn.Module]) -> None:
    layers = nn.Sequential(make(0.5), make(0.5))
    draws = give_draws(layers)
    draws.begin(11, first=0, num_samples=12)
    whole = layers(torch.ones(12, 5, 7))
    parts = []
    for first, last in ((0, 2), (2, 7), (7, 12)):
        draws.begin(11, first=first, num_samples=last - first)
        parts.append(layers(torch.ones(last - first, 5, 7)))
    assert torch.equal(whole, torch.cat(parts))
    draws.begin(12, first=0, num_samples=12)
    assert not torch.equal(whole, layers(torch.ones(12, 5, 7)))


def test_views_of_a_sample_have_draws_of_their_own() -> None:
    drop = DropPath(0.5)
    draws = give_draws(drop)
    draws.begin(1, first=0, num_samples=64, num_views=2)
    whole = drop(torch.ones(128, 1)).flatten()
    assert not torch.equal(whole[0::2], whole[1::2])
    draws.begin(1, first=32, num_samples=32, num_views=2)
    assert torch.equal(drop(torch.ones(64, 1)).flatten(), whole[64:])


def test_views_that_pass_one_size_after_the_other_keep_the_draws_of_their_view() -> None:
    drop = DropPath(0.5)
    draws = give_draws(drop)
    draws.begin(1, first=8, num_samples=16, num_views=5)
    whole = drop(torch.ones(80, 1)).view(16, 5)
    draws.begin(1, first=8, num_samples=16, num_views=5, views_of_passes=(2, 3))
    assert torch.equal(drop(torch.ones(48, 1)).view(16, 3), whole[:, 2:])
    assert torch.equal(drop(torch.ones(32, 1)).view(16, 2), whole[:, :2])


def test_draws_are_uniform_and_those_of_layers_samples_and_steps_are_independent() -> None:
    draws = SampleDraws(4)
    tables = []
    for key in (5, 6, 2**61 + 5):
        draws.begin(key, first=0, num_samples=4096)
        tables += [draws.uniform(layer, num_rows=4096) for layer in range(4)]
    table = torch.stack(tables)
    assert table.min() >= 0.0
    assert table.max() < 1.0
    counts = torch.histc(table, bins=16, min=0.0, max=1.0)
    assert ((counts - 3072.0).abs() < 250.0).all()  # about five standard deviations
    correlations = torch.corrcoef(table) - torch.eye(12)
    assert correlations.abs().max() < 0.08
    neighbours = torch.corrcoef(torch.stack([table[:, :-1].flatten(), table[:, 1:].flatten()]))[0, 1]
    assert abs(neighbours) < 0.03


def test_layers_that_drop_nothing_are_not_counted() -> None:
    layers = nn.Sequential(DropPath(0.0), DropPath(0.5), Dropout(0.0), Dropout(0.1))
    assert give_draws(layers).num_layers == 2


@pytest.mark.parametrize("make", [DropPath, Dropout])
def test_rows_that_nobody_announced_are_drawn_from_torchs_generator(make: type[nn.Module]) -> None:
    layer = make(0.5)
    give_draws(layer).begin(1, first=0, num_samples=4)
    torch.manual_seed(3)
    first = layer(torch.ones(7, 9))
    torch.manual_seed(3)
    assert torch.equal(layer(torch.ones(7, 9)), first)
    assert set(first.unique().tolist()) == {0.0, 2.0}
