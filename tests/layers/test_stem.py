"""Stems: what table 7 of Three things compares, and what the hMLP stem promises."""

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from vitrail.layers.grid import resample_vectors
from vitrail.layers.position import LearnedPositions
from vitrail.layers.stem import STEMS, make_stem


@pytest.mark.parametrize("kind", STEMS)
def test_every_stem_gives_one_vector_per_patch(kind: str) -> None:
    stem = make_stem(kind, in_channels=3, dim=48, patch_size=16).eval()
    assert stem(torch.randn(2, 3, 64, 96)).shape == (2, 48, 4, 6)
    assert stem.grid(64, 96) == (4, 6)


@pytest.mark.parametrize("kind", STEMS)
def test_only_the_convolutional_stems_let_patches_communicate(kind: str) -> None:
    """Section 5: with linear and hMLP stems masking before and after the stem is the same."""
    torch.manual_seed(0)
    stem = make_stem(kind, in_channels=3, dim=48, patch_size=16).eval()
    images = torch.randn(1, 3, 64, 64)
    changed = images.clone()
    changed[:, :, 16:32, 16:32] = 0.0
    difference = (stem(changed) - stem(images)).abs().amax(dim=1)[0]
    elsewhere = difference.clone()
    elsewhere[1, 1] = 0.0
    assert difference[1, 1] > 0
    assert (elsewhere.max() > 0) == kind.startswith("conv")


@pytest.mark.parametrize("patch_size", [1, 14])
def test_convolutional_stem_halves_a_power_of_two(patch_size: int) -> None:
    with pytest.raises(ValueError, match=rf"patch_size must be 2, 4, 8, \.\.\., not {patch_size}"):
        make_stem("conv", in_channels=3, dim=48, patch_size=patch_size)


def test_a_size_that_can_not_be_cut_gets_a_proposal() -> None:
    stem = make_stem("linear", in_channels=3, dim=48, patch_size=16)
    with pytest.raises(ValueError, match=r"300x7 can't be cut into patches of 16: resize it, e\.g\. to 304x16"):
        stem.grid(300, 7)


@pytest.mark.parametrize("kind", ["linear", "conv", "hmlp_ln"])
def test_an_image_has_at_least_one_patch(kind: str) -> None:
    stem = make_stem(kind, in_channels=3, dim=48, patch_size=16)
    with pytest.raises(ValueError, match=r"an image of 32x0 is empty: it needs at least one patch of 16 pixels"):
        stem.grid(32, 0)


@pytest.mark.parametrize("patch_size", [8, 16])
def test_hmlp_stem_starts_from_a_quarter_of_the_width(patch_size: int) -> None:
    with pytest.raises(ValueError, match=r"dim must be a multiple of 4, not 50"):
        make_stem("hmlp_bn", in_channels=3, dim=50, patch_size=patch_size)


def test_positions_are_resized_by_bicubic_interpolation_that_keeps_the_norm() -> None:
    """Thesis 3.4.5: bilinear interpolation shrinks the vectors, bicubic much less."""
    torch.manual_seed(0)
    values = torch.randn(1, 49, 64)
    norm = values.norm(dim=2).mean()
    bicubic = resample_vectors(values, old=(7, 7), new=(12, 12)).norm(dim=2).mean()
    bilinear = resample_vectors(values, old=(7, 7), new=(12, 12), mode="bilinear").norm(dim=2).mean()
    assert bilinear < bicubic < norm * 1.01
    assert resample_vectors(values, old=(7, 7), new=(5, 9)).shape == (1, 45, 64)
    assert resample_vectors(values, old=(7, 7), new=(7, 7)) is values


def test_antialiased_positions_are_those_of_timm() -> None:
    values = torch.randn(1, 196, 8)
    for grid in ((7, 7), (9, 24)):
        found = resample_vectors(values, old=(14, 14), new=grid, mode="antialiased")
        theirs = resample_abs_pos_embed(values, list(grid), num_prefix_tokens=0)
        assert torch.allclose(found, theirs, atol=1e-6)
        assert not torch.allclose(found, resample_vectors(values, old=(14, 14), new=grid), atol=0.1)


def test_a_constant_position_stays_constant_when_resized() -> None:
    positions = LearnedPositions(4, grid=(3, 3))
    with torch.no_grad():
        positions.patches.fill_(2.0)
    assert torch.allclose(positions.for_grid((5, 4)), torch.full((1, 20, 4), 2.0))
