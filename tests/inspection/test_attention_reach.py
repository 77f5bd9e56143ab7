"""Where attention is known by construction, so are its distance and its spread."""

import math

import pytest
import torch
from planted import DIM, PATCH, bright_at, plant

from vitrail.inspection.attention_reach import distances_between, spread_of, watched_attention
from vitrail.layers.attention import SelfAttention
from vitrail.models.contract import Model

SIZE = (2 * PATCH, 3 * PATCH)  # not square: two rows of three patches


@torch.no_grad()
def all_ask(model: Model) -> Model:
    """Every token, patches too, looks at the bright patch and at nothing else."""
    for part in model.modules():
        if isinstance(part, SelfAttention):
            for head in range(part.num_heads):
                part.qkv.bias[head * (DIM // part.num_heads)] = 1000.0
    return model


@torch.no_grad()
def watch(model: Model, images: torch.Tensor) -> tuple[list[list[float]], list[list[float]], float | None]:
    with watched_attention(model, (images.shape[2], images.shape[3])) as meter:
        model.features(images)
    return meter.distances(), meter.spreads(), meter.even_distance


@pytest.mark.parametrize("name", ["deit_tiny", "deit_tiny_distilled", "cait_xxs24"])
def test_patches_that_look_at_a_corner_look_as_far_as_it_is(name: str) -> None:
    distances, _, _ = watch(all_ask(plant(name, size=SIZE)), bright_at((0, 0), (0, 0), size=SIZE))
    to_corner = [0, 1, 2, 1, math.sqrt(2), math.sqrt(5)]  # in patches
    assert len(distances) == 2
    for heads in distances:
        assert heads == pytest.approx([PATCH * sum(to_corner) / 6] * 2, rel=1e-5)


def test_patches_that_look_at_all_alike_look_as_far_as_even_attention() -> None:
    distances, _, even = watch(plant("deit_tiny", size=SIZE), torch.zeros(1, 3, *SIZE))
    assert even == pytest.approx(distances_between((2, 3), step=PATCH).mean().item())
    assert distances[0] == pytest.approx([even] * 2, rel=1e-5)


def test_distances_are_those_of_the_grid_in_pixels() -> None:
    found = distances_between((2, 2), step=16)
    diagonal = 16 * math.sqrt(2)
    assert found[0].tolist() == pytest.approx([0, 16, 16, diagonal])
    assert found[3].tolist() == pytest.approx([diagonal, 16, 16, 0])


@pytest.mark.parametrize("name", ["cait_xxs24", "patchconvnet_s60"])
def test_class_attention_sees_one_patch_or_all(name: str) -> None:
    model = plant(name, size=SIZE)
    _, dark, _ = watch(model, torch.zeros(2, 3, *SIZE))
    _, bright, _ = watch(model, bright_at((1, 2), (0, 1), size=SIZE))
    assert dark[0] == pytest.approx([6.0] * len(dark[0]), rel=1e-5)
    assert bright[0] == pytest.approx([1.0] * len(bright[0]), abs=0.01)


def test_the_spread_counts_what_is_looked_at() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert spread_of(rows).tolist() == pytest.approx([1.0, 2.0, 4.0])


def test_heads_of_parallel_attentions_count_on_and_weights_below_zero_count_by_their_size() -> None:
    distances, spreads, _ = watch(plant("vit_b12x2", size=SIZE, num_heads=2), torch.zeros(1, 3, *SIZE))
    assert [len(heads) for heads in distances] == [4, 4]
    assert spreads == []
    model = all_ask(plant("cait_xxs24", size=SIZE))
    images = bright_at((0, 0), size=SIZE)
    expected, _, _ = watch(model, images)
    with torch.no_grad():
        for block in model.blocks:
            block.communication.branches[0].mix.after_softmax.weight.neg_()
    assert watch(model, images)[0] == expected
