"""What is to be told of a masked patch, by hand."""

import math
from pathlib import Path

import pytest
import torch
from shrunk import randomize, small_model

import vitrail
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.tasks.masked.hog import cell_side, oriented_gradients
from vitrail.tasks.masked.settings import MaskedSettings
from vitrail.tasks.masked.targets import GradientTargets, PixelTargets, TokenTargets, open_targets

CPU = torch.device("cpu")


def pixels_of(size: int = 16, *, seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_pixels_have_mean_0_and_deviation_1_in_every_patch_and_come_back() -> None:
    targets, pixels = PixelTargets(grid=(2, 2), patch=8), pixels_of()
    wanted = targets(pixels)
    patch = pixels[1, :, 8:, :8].flatten()
    torch.testing.assert_close(wanted[1, 2], (patch - patch.mean()) / patch.std(), rtol=1e-4, atol=1e-4)
    masks = torch.tensor([[[True, False], [False, True]], [[False, False], [True, True]]])
    at_masks = wanted[masks.flatten(1)].view(2, 2, -1)
    assert targets.cost(at_masks, at_masks) == 0.0
    torch.testing.assert_close(targets.paint(at_masks, pixels, masks), pixels)
    other = targets.paint(torch.zeros_like(at_masks), pixels, masks)
    torch.testing.assert_close(other[0, :, :8, 8:], pixels[0, :, :8, 8:])  # a patch that was seen
    torch.testing.assert_close(other[0, :, :8, :8].mean(), pixels[0, :, :8, :8].mean())


def test_gradients_are_counted_by_hand() -> None:
    pixels, cell = pixels_of(8)[:, :1], 4
    found = oriented_gradients(pixels, cell=cell)
    assert found.shape == (2, 9, 2, 2)
    image = torch.nn.functional.pad(pixels, (1, 1, 1, 1), mode="reflect")[1, 0].tolist()
    weight = [math.exp(-0.5 * ((place - 3.5) / 4) ** 2) for place in range(8)]
    sums = [0.0] * 9
    for row in range(4, 8):
        for column in range(4):

            def at(down: int, across: int, *, row: int = row, column: int = column) -> float:
                return image[row + 1 + down][column + 1 + across]

            across = sum(factor * (at(down, -1) - at(down, 1)) for down, factor in ((-1, 1), (0, 2), (1, 1)))
            down = sum(factor * (at(-1, side) - at(1, side)) for side, factor in ((-1, 1), (0, 2), (1, 1)))
            place = math.floor(math.atan2(across, down) / math.pi * 9) % 9
            sums[place] += math.hypot(across, down) * weight[row] * weight[column]
    length = math.sqrt(sum(value**2 for value in sums))
    assert found[1, :, 1, 0].tolist() == pytest.approx([value / length for value in sums], rel=1e-4)


def test_gradients_know_edges_and_not_contrast() -> None:
    pixels = torch.zeros(1, 3, 16, 16)
    pixels[..., 8:] = 1.0  # one edge, from top to bottom
    targets = GradientTargets(patch=16)
    assert (cell_side(16), cell_side(8), targets.num_outputs) == (8, 8, 108)
    found, weaker = targets(pixels), targets(0.1 * pixels + 0.3)
    assert found.shape == (1, 1, 108)
    torch.testing.assert_close(found, weaker, atol=1e-3, rtol=1e-3)
    by_bin = found.view(3, 9, 2, 2)
    assert set(by_bin.amax(dim=(0, 2, 3)).gt(0.5).nonzero().flatten().tolist()) <= {0, 4, 8}
    turned = targets(pixels.transpose(2, 3)).view(3, 9, 2, 2)
    assert not torch.allclose(turned, by_bin)


def test_a_teachers_patches_are_brought_to_the_grid_and_their_direction_is_what_counts(tmp_path: Path) -> None:
    teacher = randomize(small_model("deit_tiny", num_classes=0)).eval()  # 4x4 patches of 64 pixels
    vitrail.save_model(teacher, tmp_path / "teacher")
    settings = MaskedSettings(target="features", teacher=str(tmp_path / "teacher"))
    targets = open_targets(settings, grid=(4, 4), size=(32, 32), device=CPU)
    pixels = pixels_of(64)
    wanted = targets(pixels)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (teacher.preprocessing.mean, teacher.preprocessing.std))
    with torch.no_grad():
        patches = teacher.features((pixels - mean) / std).patches
    torch.testing.assert_close(wanted, patches.flatten(2).transpose(1, 2))
    coarse = open_targets(settings, grid=(2, 2), size=(32, 32), device=CPU)(pixels_of(32))
    assert coarse.shape == (2, 4, 48)
    assert targets.cost(3.0 * wanted, wanted) == pytest.approx(0.0, abs=1e-6)
    assert targets.cost(-wanted, wanted) == pytest.approx(2.0)


def test_tokens_are_those_of_the_tokenizer_at_its_own_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.made(TokenizerConfig(image_size=8, patch_size=4, num_codes=5, kind="kmeans")).eval()
    vitrail.save_model(tokenizer, tmp_path / "tokens")
    settings = MaskedSettings(tokenizer=str(tmp_path / "tokens"))
    targets = open_targets(settings, grid=(2, 2), size=(16, 16), device=CPU)
    assert isinstance(targets, TokenTargets)
    assert (targets.num_outputs, targets(pixels_of(16)).shape) == (5, (2, 4))
    logits = torch.randn(2, 3, 5)
    wanted = torch.tensor([[0, 1, 2], [3, 4, 0]])
    by_hand = [-logits[row, place].log_softmax(0)[wanted[row, place]] for row in range(2) for place in range(3)]
    torch.testing.assert_close(targets.cost(logits, wanted), torch.stack(by_hand).mean())
    masks = torch.ones(2, 2, 2, dtype=torch.bool)
    painted = targets.paint(torch.nn.functional.one_hot(targets(pixels_of(16)), 5).float(), pixels_of(16), masks)
    assert painted is not None
    assert painted.shape == (2, 3, 16, 16)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    tokenizer = Tokenizer.made(TokenizerConfig(image_size=8, patch_size=2, num_codes=5))
    vitrail.save_model(tokenizer, tmp_path / "tokens")
    vitrail.save_model(small_model("deit_tiny"), tmp_path / "deit")
    for settings, said in (
        (MaskedSettings(), "no tokenizer given: train one with `vitrail train tokenizer"),
        (
            MaskedSettings(tokenizer=str(tmp_path / "tokens")),
            r"gives 4x4 tokens \(patches of 2 px\) and the model has 2x2",
        ),
        (MaskedSettings(tokenizer=str(tmp_path / "deit")), "is a deit_tiny, no run of `vitrail train tokenizer`"),
        (MaskedSettings(target="features"), "no teacher given: add masked.teacher=MODEL"),
    ):
        with pytest.raises(ValueError, match=said):
            open_targets(settings, grid=(2, 2), size=(16, 16), device=CPU)
    with pytest.raises(ValueError, match="17x16 are no whole number of the model's patches"):
        open_targets(MaskedSettings(target="pixels"), grid=(2, 2), size=(17, 16), device=CPU)
