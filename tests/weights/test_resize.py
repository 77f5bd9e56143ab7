"""Weights of another resolution: positions, ResMLP's layer across patches, and grids that are not square."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from shrunk import randomize, small_model
from torch.nn import functional

from vitrail import load_weights, save_model, to_timm
from vitrail.layers.grid import resampling


def fresh(name: str, **settings: Any) -> Any:
    return small_model(name, **settings)


def randomized(name: str, *, seed: int = 0, **settings: Any) -> Any:
    return randomize(small_model(name, **settings), seed=seed)


def test_positions_are_resized_bicubically() -> None:
    source = randomized("deit_tiny")
    model: Any = load_weights(fresh("deit_tiny", image_size=(96, 160)), to_timm(source))
    maps = source.positions.patches.unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    expected = functional.interpolate(maps, size=(6, 10), mode="bicubic").flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.positions.patches, expected)
    assert torch.equal(model.positions.tokens, source.positions.tokens)
    assert model(torch.randn(1, 3, 96, 160)).shape == (1, 7)


def test_bilinear_positions_are_another_choice() -> None:
    source = randomized("cait_xxs24")
    bicubic, bilinear = fresh("cait_xxs24", image_size=96), fresh("cait_xxs24", image_size=96)
    load_weights(bicubic, source.state_dict())
    load_weights(bilinear, source.state_dict(), interpolation="bilinear")
    assert not torch.allclose(bicubic.positions.patches, bilinear.positions.patches)
    # Thesis 3.4.5: bilinear shrinks the vectors, bicubic less.
    assert bilinear.positions.patches.norm() < bicubic.positions.patches.norm()


@pytest.mark.parametrize("name", ["deit_tiny", "deit_tiny_distilled", "deit3_small", "cait_xxs24"])
@pytest.mark.parametrize("image_size", [96, 48, (32, 80)])
def test_resized_weights_act_as_positions_resized_on_the_fly(name: str, image_size: Any) -> None:
    source = randomized(name).eval()
    model: Any = load_weights(fresh(name, image_size=image_size).eval(), to_timm(source))
    images = torch.randn(2, 3, *model.config.size)
    torch.testing.assert_close(model(images), source(images))


def test_a_square_source_onto_a_grid_of_equal_count() -> None:
    source = randomized("deit_tiny")  # 4 x 4 patches
    wide: Any = load_weights(fresh("deit_tiny", image_size=(32, 128)), to_timm(source))
    assert not torch.equal(wide.positions.patches, source.positions.patches)
    again: Any = load_weights(fresh("deit_tiny", image_size=(32, 128)), wide.state_dict())
    assert torch.equal(again.positions.patches, wide.positions.patches)


@pytest.mark.parametrize("name", ["deit_tiny", "deit3_small", "cait_xxs24", "resmlp_s12"])
def test_a_source_that_is_not_square(name: str, tmp_path: Path) -> None:
    source = randomized(name, image_size=(32, 80))
    model = fresh(name, image_size=64)
    with pytest.raises(ValueError, match=r"10 patches form no square: .*grid=\(rows, columns\)"):
        load_weights(model, source.state_dict())
    with pytest.raises(ValueError, match="a grid of 3x4 has 12 patches and the weights have 10"):
        load_weights(model, source.state_dict(), grid=(3, 4))
    by_hand = load_weights(fresh(name, image_size=64), to_timm(source), grid=(2, 5)).state_dict()
    save_model(source, tmp_path)
    by_file = load_weights(model, tmp_path).state_dict()  # the file we wrote says its grid
    assert all(torch.equal(by_hand[key], by_file[key]) for key in by_file)


@pytest.mark.parametrize("name", ["deit_tiny", "deit3_small", "cait_xxs24", "resmlp_s12"])
def test_a_model_that_is_not_square_takes_its_own_weights_back(name: str) -> None:
    source = randomized(name, image_size=(32, 80))
    for state in (source.state_dict(), to_timm(source)):
        model: Any = load_weights(fresh(name, image_size=(32, 80)), state)
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in model.state_dict().items())


def test_the_files_grid_decides_where_counts_are_equal(tmp_path: Path) -> None:
    source = randomized("deit_tiny", image_size=(32, 128))
    save_model(source, tmp_path)
    model: Any = load_weights(fresh("deit_tiny", image_size=64), tmp_path)
    torch.testing.assert_close(
        model.positions.patches,
        functional.interpolate(
            source.positions.patches.unflatten(1, (2, 8)).permute(0, 3, 1, 2), size=(4, 4), mode="bicubic"
        )
        .flatten(2)
        .transpose(1, 2),
    )


@pytest.mark.parametrize("image_size", [96, 32, (48, 112), (32, 128)])
def test_cross_patch_layer_answers_a_constant_image_as_before(image_size: Any) -> None:
    source = randomized("resmlp_s12")
    model: Any = load_weights(fresh("resmlp_s12", image_size=image_size), to_timm(source))
    old, new = (part.blocks[0].communication.branches[0].mix.linear for part in (source, model))
    # The bias makes a map that is resampled; without it the response to equal patches is that of each output.
    response, resized = old.weight.sum(dim=1), new.weight.sum(dim=1)
    matrix = resampling((4, 4), model.grid, "bicubic").float()
    torch.testing.assert_close(resized, matrix @ response, atol=1e-5, rtol=0)
    torch.testing.assert_close(new.bias, matrix @ old.bias, atol=1e-5, rtol=0)


def test_a_uniform_cross_patch_layer_keeps_the_logits_of_a_constant_image() -> None:
    source = randomized("resmlp_s12", pool="class_mlp").eval()
    for block in source.blocks:
        layer = block.communication.branches[0].mix.linear
        torch.nn.init.constant_(layer.weight, 0.05)
        torch.nn.init.constant_(layer.bias, 0.3)
    model: Any = load_weights(fresh("resmlp_s12", pool="class_mlp", image_size=(48, 96)).eval(), source.state_dict())
    logits, resized = (part(torch.full((1, 3, *part.config.size), 0.5)) for part in (source, model))
    torch.testing.assert_close(resized, logits, atol=1e-4, rtol=1e-4)


def test_cross_patch_layer_enlarged_twice_acts_on_enlarged_maps_as_before() -> None:
    source = randomized("resmlp_s12", image_size=128)
    model: Any = load_weights(fresh("resmlp_s12", image_size=256), source.state_dict())
    old, new = (part.blocks[0].communication.branches[0].mix for part in (source, model))
    smooth = torch.linspace(0, 1, 8)[:, None] * torch.linspace(-1, 1, 8)
    patches = smooth.reshape(1, 64, 1)
    to_new, to_old = resampling((8, 8), (16, 16), "bicubic").float(), resampling((16, 16), (8, 8), "bicubic").float()
    expected = old(patches)
    actual = to_old @ new(to_new @ patches)
    assert functional.cosine_similarity(actual.flatten(), expected.flatten(), dim=0) > 0.95


def test_convolutions_across_patches_need_no_resizing() -> None:
    source = randomized("resmlp_s12", communication="depthwise")
    model: Any = load_weights(fresh("resmlp_s12", communication="depthwise", image_size=96), source.state_dict())
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in model.state_dict().items())


def test_an_mlp_across_patches_can_not_be_resized() -> None:
    source = fresh("resmlp_s12", communication="mlp")
    with pytest.raises(ValueError, match=r"MLP across patches can't change its resolution: .*4x4 patches"):
        load_weights(fresh("resmlp_s12", communication="mlp", image_size=96), source.state_dict())


def test_half_precision_positions_are_resized_in_full() -> None:
    source = randomized("deit_tiny")
    state = {name: value.half() for name, value in to_timm(source).items()}
    model: Any = load_weights(fresh("deit_tiny", image_size=96), state)
    expected: Any = load_weights(fresh("deit_tiny", image_size=96), to_timm(source))
    torch.testing.assert_close(model.positions.patches, expected.positions.patches, atol=2e-3, rtol=0)


def test_metadata_of_others_is_no_grid(tmp_path: Path) -> None:
    source = randomized("deit_tiny")
    save_file(to_timm(source), tmp_path / "model.safetensors", metadata={"format": "pt", "grid": "wide"})
    model: Any = load_weights(fresh("deit_tiny"), tmp_path)
    assert torch.equal(model.positions.patches, source.positions.patches)
