"""Runs that start from weights of another image size, square or not, and stages of other sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import model_of, run_in, tiny_recipe

import vitrail
from vitrail.inference.trained import load_trained

SHORT = ("steps=1", "augmentation.repeats=1", "regularisation.ema=null")
FAMILIES = {
    "vit": ("model=deit_tiny", "model.settings={patch_size: 4, dim: 16, depth: 1, num_heads: 2}"),
    "cait": ("model=cait_xxs24", "model.settings={patch_size: 4, dim: 16, depth: 1, num_heads: 2}"),
    "resmlp": ("model=resmlp_s12", "model.settings={patch_size: 4, dim: 16, depth: 1}"),
    "patchconvnet": ("model=patchconvnet_s60", "model.settings={stem: linear, patch_size: 4, dim: 16, depth: 1}"),
    "timm": ("model=timm/test_resnet", "model.settings={}"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_starts_from_a_run_of_another_size(family: str, tmp_path: Path) -> None:
    words = (*FAMILIES[family], *SHORT)
    square = run_in(tmp_path / "square", *words, "image_size=32")
    tall = run_in(tmp_path / "tall", *words, f"init={square.path}", "image_size=[48, 32]")
    large = run_in(tmp_path / "large", *words, f"init={tall.path}", "image_size=64")
    assert load_trained(tall.path).view.image_size == (48, 32)
    model = load_trained(large.path).model
    with torch.inference_mode():
        assert model(torch.rand(1, 3, 64, 64)).isfinite().all()


@pytest.mark.parametrize("family", ["vit", "resmlp"])
def test_stages_that_are_not_square(family: str, tmp_path: Path) -> None:
    stages = "stages=[{image_size: [24, 16]}, {image_size: [16, 24]}, {image_size: [32, 16]}]"
    run = run_in(tmp_path / "run", *FAMILIES[family], *SHORT, stages)
    assert load_trained(run.path).model.grid == (8, 4)


@pytest.mark.parametrize(("family", "name"), [("vit", "positions.patches"), ("resmlp", "blocks.0.communication")])
def test_the_recipe_says_how_positions_are_resized(family: str, name: str, tmp_path: Path) -> None:
    words = FAMILIES[family]
    source = model_of(tiny_recipe(*words), num_classes=24)
    vitrail.save_model(source, tmp_path)
    states: dict[str, Any] = {}
    for mode in ("bicubic", "bilinear", "antialiased"):
        recipe = tiny_recipe(*words, f"init={tmp_path}", "image_size=32", f"model.position_resize={mode}")
        states[mode] = model_of(recipe, num_classes=24).state_dict()
        expected = model_of(tiny_recipe(*words, "image_size=32"), num_classes=24)
        vitrail.load_weights(expected, tmp_path, interpolation=mode)
        assert all(torch.equal(value, states[mode][key]) for key, value in expected.state_dict().items())
    differing = [key for key, value in states["bicubic"].items() if not torch.equal(value, states["bilinear"][key])]
    assert differing
    assert all(key.startswith(name) for key in differing)
    with pytest.raises(ValueError, match=r"model\.position_resize cannot be 'nearest'"):
        tiny_recipe("model.position_resize=nearest")
