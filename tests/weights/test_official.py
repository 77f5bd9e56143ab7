"""Equal logits with the official implementation, from small models with its names and outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail import create_model, fold, load_model, load_weights, save_model
from vitrail.layers.attention import ClassAttention

FOLDER = Path(__file__).parents[1] / "data" / "official"
FILES = sorted(FOLDER.glob("*.safetensors"))
MULTI_BIAS = FOLDER / "patchconvnet_multi_bias.safetensors"  # its output is not of the layer that S60_multi has
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
        "qkv_bias": "qkv_bias",
        "branches": "num_branches",
    }
    ours = {names[key]: value for key, value in config.items() if key in names}
    if config["family"] == "vit":
        ours["layer_scale"] = 1e-4 if config.get("layerscale") else None
        ours["stem"] = "hmlp_bn" if config.get("stem") == "hmlp-bn" else "linear"
    if config["family"] == "patchconvnet":
        ours.setdefault("qkv_bias", False)
    return create_model(ROWS[config["family"]], **{**ours, **settings}).eval()


def test_there_are_fixtures() -> None:
    assert len(FILES) == 10


@pytest.mark.parametrize("path", [path for path in FILES if path != MULTI_BIAS], ids=lambda path: path.stem)
def test_same_logits_as_the_official_code(path: Path) -> None:
    config, state, images, expected = read_fixture(path)
    model = load_weights(build(config), state)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(fold(model)(images), expected, atol=1e-5, rtol=0)


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


@pytest.mark.parametrize(("name", "has_biases"), [("patchconvnet", False), ("patchconvnet_bias", True)])
def test_biases_of_the_pooling_are_told_where_they_differ(name: str, has_biases: bool) -> None:
    config, state, _, _ = read_fixture(FOLDER / f"{name}.safetensors")
    with pytest.raises(ValueError, match=rf"biases of queries, keys and values .* none: .*qkv_bias={has_biases}"):
        load_weights(build(config, qkv_bias=not has_biases), state)


def test_a_checkpoint_of_a_patchconvnet_without_biases_makes_the_model_one(tmp_path: Path) -> None:
    """Unfinished runs of before know the name of their model only, and the row of that name has biases now."""
    config, state, images, expected = read_fixture(FOLDER / "patchconvnet.safetensors")
    checkpoint = load_weights(build(config), state).state_dict()
    model = build(config, qkv_bias=True)
    model.load_state_dict(checkpoint)
    assert not model.config.qkv_bias
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    save_model(model, tmp_path / "model")
    settings_file = tmp_path / "model" / "config.json"
    description = json.loads(settings_file.read_text())
    del description["settings"]["qkv_bias"]  # a model that was saved before there was the setting
    settings_file.write_text(json.dumps(description))
    with torch.inference_mode():
        torch.testing.assert_close(load_model(tmp_path / "model")(images), expected, atol=1e-5, rtol=0)


class FirstTokenForAll(nn.Module):
    """The official layer for one token: where there are several, all get what the first one sees in all."""

    def __init__(self, attention: ClassAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        seen = torch.cat([tokens, patches], dim=1)
        return self.attention(tokens[:, :1], seen).expand(-1, tokens.shape[1], -1)


def test_biases_with_a_token_per_class() -> None:
    """The fixture was made with the layer for one token in place of S60_multi's; all else of it is S60_multi's."""
    config, state, images, expected = read_fixture(MULTI_BIAS)
    model = build(config)
    load_weights(model, state)
    branch = model.class_stage.blocks[0].communication.branches[0]
    branch.mix = FirstTokenForAll(branch.mix)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)


def test_a_token_per_class_looks_at_the_patches_only() -> None:
    """S60_multi's layer by hand: one query a class, keys and values of the patches, biases on all three."""
    config, state, images, _ = read_fixture(MULTI_BIAS)
    model = build(config)
    load_weights(model, state)
    attention = model.class_stage.blocks[0].communication.branches[0].mix
    tokens, patches = torch.randn(2, 10, 64), torch.randn(2, 36, 64)
    names = {name: state[f"blocks_token_only.0.attn.{name}"] for name in ("q.bias", "k.bias", "v.bias")}
    weights = {name: state[f"blocks_token_only.0.attn.{name}.weight"] for name in ("q", "k", "v", "proj")}
    query = tokens @ weights["q"].T + names["q.bias"]
    key, value = (patches @ weights[name].T + names[f"{name}.bias"] for name in ("k", "v"))
    seen = (query @ key.transpose(1, 2) / 8.0).softmax(dim=2) @ value
    expected = seen @ weights["proj"].T + state["blocks_token_only.0.attn.proj.bias"]
    with torch.inference_mode():
        torch.testing.assert_close(attention(tokens, patches), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(fold(model)(images), model(images), atol=1e-5, rtol=0)
