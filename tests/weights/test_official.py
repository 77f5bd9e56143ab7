"""Equal logits with the official implementation, from small models with its names and outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail import create_model, load_weights

FOLDER = Path(__file__).parents[1] / "data" / "official"
FILES = sorted(FOLDER.glob("*.safetensors"))
ROWS = {"cait": "cait_xxs24", "resmlp": "resmlp_s12", "patchconvnet": "patchconvnet_s20", "vit": "deit3_small"}


def read_fixture(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], Tensor, Tensor]:
    """The config, the official state dict, the images and the logits."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    content = load_file(path)
    state = {name.removeprefix("state."): value for name, value in content.items() if name.startswith("state.")}
    return config, state, content["input"], content["output"]


def build(config: dict[str, Any], **settings: Any) -> Any:
    """Our model of a fixture's config."""
    names = {
        "img_size": "image_size",
        "num_classes": "num_classes",
        "dim": "dim",
        "depth": "depth",
        "patch": "patch_size",
        "heads": "num_heads",
        "class_depth": "class_depth",
        "per_class_tokens": "per_class_tokens",
        "branches": "num_branches",
    }
    ours = {names[key]: value for key, value in config.items() if key in names}
    if config["family"] == "vit":
        ours["layer_scale"] = 1e-4 if config.get("layerscale") else None
        ours["stem"] = "hmlp_bn" if config.get("stem") == "hmlp-bn" else "linear"
    return create_model(ROWS[config["family"]], **{**ours, **settings}).eval()


def test_there_are_fixtures() -> None:
    assert len(FILES) == 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_same_logits_as_the_official_code(path: Path) -> None:
    config, state, images, expected = read_fixture(path)
    model = load_weights(build(config), state)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_that_are_left_out_are_missed(path: Path) -> None:
    config, state, _, _ = read_fixture(path)
    model = build(config)
    optional = {name for name in state if name.endswith("num_batches_tracked")}
    for name in sorted(state.keys() - optional)[::7]:
        with pytest.raises(ValueError, match=r"missing|misshapen"):
            load_weights(model, {key: value for key, value in state.items() if key != name})
    load_weights(model, {name: value for name, value in state.items() if name not in optional})


def test_official_names_from_a_file(tmp_path: Path) -> None:
    config, state, images, expected = read_fixture(FOLDER / "cait.safetensors")
    save_file(state, tmp_path / "weights.safetensors")
    model = load_weights(build(config), tmp_path / "weights.safetensors")
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)


def test_reset_head_with_a_token_per_class_resets_the_tokens() -> None:
    config, state, images, _ = read_fixture(FOLDER / "patchconvnet_multi.safetensors")
    model = build(config, num_classes=3)
    fresh = model.class_stage.tokens.clone()
    with pytest.raises(ValueError, match="7 classes and the model 3: pass reset_head=True"):
        load_weights(model, state)
    load_weights(model, state, reset_head=True)
    assert torch.equal(model.class_stage.tokens, fresh)
    assert torch.equal(model.blocks[0].branches[0].scale.weight, state["blocks.0.gamma_1"])
    assert model(images).shape == (2, 3)


def test_a_token_per_class_does_not_become_one_token() -> None:
    config, state, _, _ = read_fixture(FOLDER / "patchconvnet_multi.safetensors")
    with pytest.raises(ValueError, match=r"a token per class and the model has none: .*per_class_tokens=True"):
        load_weights(build(config, per_class_tokens=False), state)
