"""What every model promises, one test body for every row of the catalogue (shrunk)."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shrunk import NUM_CLASSES, images_for, randomize, small_model
from torch.nn import functional

import vitrail
from vitrail.layers.sample_draws import Dropout
from vitrail.models.catalog import CATALOG
from vitrail.models.vit import VisionTransformer

CONVOLUTION = "blocks.0.communication.branches.0.mix.convolution.weight"
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("deit_small", {"pool": "average"}),
    ("deit_small", {"class_layer": 1}),
    ("deit_small", {"talking_heads": True}),
    ("deit_small", {"num_branches": 3, "layer_scale": 0.1}),
    *[("deit_small", dict[str, Any](residual=style)) for style in ("rezero", "fixup", "t_fixup", "post_norm")],
    *[
        ("cait_s24", dict[str, Any](residual=style, layer_scale=None))
        for style in ("rezero", "fixup", "t_fixup", "post_norm")
    ],
    *[("deit_small", dict[str, Any](residual=style, residual_norm=False)) for style in ("rezero", "fixup", "t_fixup")],
    ("cait_s24", {"residual": "scalar"}),
    ("cait_s24", {"residual": "scalar", "residual_norm": False}),
    ("cait_s24", {"residual": "constant_scaling", "layer_scale": None}),
    ("cait_s24", {"residual": "exclusive_gating", "layer_scale": None}),
    ("cait_s24", {"residual": "shortcut_gating", "layer_scale": None}),
    ("cait_s24", {"residual": "linear_shortcut", "layer_scale": None}),
    ("cait_s24", {"residual": "dropout_shortcut", "layer_scale": None}),
    ("cait_s24", {"layer_scale_init": "uniform"}),
    ("cait_s24", {"class_depth": 0}),
    ("cait_s24", {"class_depth": 3, "distilled": True}),
    ("cait_s24", {"class_in_keys": False, "class_layer_scale": False}),
    ("cait_s24", {"talking_heads": False}),
    ("resmlp_s12", {"norm": "layer"}),
    ("resmlp_s12", {"pool": "class_mlp"}),
    ("resmlp_s12", {"distilled": True}),
    ("resmlp_s12", {"distilled": True, "pool": "class_mlp"}),
    *[("resmlp_s12", dict[str, Any](communication=kind)) for kind in ("none", "mlp", "conv", "depthwise", "separable")],
    *[("resmlp_s12", dict[str, Any](activation=kind)) for kind in ("relu", "silu", "hardswish")],
    ("resmlp_s12", {"norm": "batch"}),
    ("resmlp_s12", {"norm": "batch", "post_norm": True}),
    ("resmlp_s12", {"post_norm": True}),
    ("resmlp_s12", {"post_norm": True, "communication": "depthwise"}),
    ("resmlp_s12", {"positions": True}),
    ("resmlp_s12", {"positions": True, "communication": "separable"}),
    ("patchconvnet_s20", {"norm": "batch"}),
    ("patchconvnet_s20", {"stem": "linear"}),
    ("patchconvnet_s20", {"num_heads": 4}),
    ("patchconvnet_s20", {"per_class_tokens": True}),
    ("patchconvnet_s20", {"pool": "average"}),
    ("patchconvnet_s20", {"distilled": True}),
]
EVERYTHING: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in CATALOG] + VARIANTS
IDS = [" ".join([name, *map(str, settings.values())]) for name, settings in EVERYTHING]


@pytest.mark.parametrize(("name", "settings"), EVERYTHING, ids=IDS)
def test_forward_and_features_agree(name: str, settings: dict[str, object]) -> None:
    model = randomize(small_model(name, **settings)).eval()
    images = images_for(model)
    with torch.no_grad():
        logits = model(images)
        features = model.features(images, levels=(0, -1))
        assert torch.allclose(model.head(features.summary), logits, atol=1e-4, rtol=1e-4)
    assert logits.shape == (2, NUM_CLASSES)
    assert logits.isfinite().all()
    assert features.patches.shape == (2, 48, 4, 4)
    assert [level.shape for level in features.levels] == [(2, 48, 4, 4)] * 2


@pytest.mark.parametrize(("name", "settings"), EVERYTHING, ids=IDS)
def test_init_weights_sets_every_parameter_and_buffer(name: str, settings: dict[str, object]) -> None:
    model = small_model(name, **settings)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(math.nan) if tensor.is_floating_point() else tensor.fill_(-1)
    model.init_weights()
    left = [key for key, value in model.state_dict().items() if not value.isfinite().all() or value.min() == -1]
    assert not left
    assert model(images_for(model)) is not None


@pytest.mark.parametrize(("name", "settings"), EVERYTHING, ids=IDS)
def test_training_reaches_every_parameter(name: str, settings: dict[str, object]) -> None:
    model = randomize(small_model(name, drop_path=0.0, **settings)).train()
    output = model(images_for(model))
    loss = sum(part.square().sum() for part in (output if isinstance(output, tuple) else (output,)))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    untouched = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not untouched


@pytest.mark.parametrize(
    "name", ["deit_small", "deit_small_distilled", "cait_xxs24", "patchconvnet_s20", "vit_b12_hmlp"]
)
@pytest.mark.parametrize("size", [(96, 64), (32, 80)])
def test_non_square_images_of_any_size(name: str, size: tuple[int, int]) -> None:
    model = randomize(small_model(name)).eval()
    with torch.no_grad():
        features = model.features(torch.randn(2, 3, *size))
        assert model(torch.randn(2, 3, *size)).shape == (2, NUM_CLASSES)
    assert features.patches.shape[-2:] == (size[0] // 16, size[1] // 16)


@pytest.mark.parametrize("name", ["deit_small", "cait_xxs24", "resmlp_s12", "patchconvnet_s20"])
def test_models_can_be_built_for_non_square_images_and_other_channels(name: str) -> None:
    model = randomize(small_model(name, image_size=(64, 96), in_channels=1)).eval()
    assert model(torch.randn(2, 1, 64, 96)).shape == (2, NUM_CLASSES)


def test_patchconvnet_takes_images_of_any_size() -> None:
    model = randomize(small_model("patchconvnet_s20")).eval()
    assert model.features(torch.randn(1, 3, 75, 50)).patches.shape == (1, 48, 5, 4)


def test_patchconvnet_keeps_channels_last() -> None:
    model = randomize(small_model("patchconvnet_s20")).eval()
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: seen.append(output.is_contiguous()))
    model(images_for(model))
    assert seen == [True, True]


def test_distillation_gives_both_logits_when_training_and_their_mean_after() -> None:
    distilled: list[tuple[str, dict[str, Any]]] = [
        ("deit_tiny_distilled", {}),
        *((name, {"distilled": True}) for name in ("cait_s24", "patchconvnet_s20", "resmlp_s12")),
        ("resmlp_s12", {"distilled": True, "pool": "class_mlp"}),
    ]
    for name, settings in distilled:
        model = randomize(small_model(name, drop_path=0.0, **settings))
        images = images_for(model)
        with torch.no_grad():
            of_class, of_teacher = model.train()(images)
            mean = model.eval()(images)
        assert not torch.allclose(of_class, of_teacher, atol=1e-3)
        assert torch.allclose(mean, (of_class + of_teacher) / 2, atol=1e-4, rtol=1e-4)


def test_resmlp_has_one_pooled_token_for_both_of_its_heads() -> None:
    for pool in ("average", "class_mlp"):
        plain, distilled = (small_model("resmlp_s12", pool=pool, distilled=flag) for flag in (False, True))
        assert distilled.features(images_for(distilled)).summary.shape == (2, 1, 48)
        extra = vitrail.complexity(distilled).parameters - vitrail.complexity(plain).parameters
        assert extra == 48 * NUM_CLASSES + NUM_CLASSES
        work = vitrail.complexity(distilled).multiply_adds - vitrail.complexity(plain).multiply_adds
        assert work == 48 * NUM_CLASSES


def test_late_class_token_is_not_seen_by_earlier_blocks() -> None:
    model = randomize(small_model("deit_small", depth=3, class_layer=2)).eval()
    lengths = []
    for block in model.blocks:
        block.communication.register_forward_pre_hook(lambda _module, inputs: lengths.append(inputs[0].shape[1]))
    model.features(images_for(model))
    assert lengths == [16, 16, 17]


def test_no_classes_gives_the_embedding() -> None:
    model = randomize(small_model("cait_xxs24", num_classes=0)).eval()
    images = images_for(model)
    assert torch.equal(model(images), model.features(images).summary[:, 0])


def test_per_class_tokens_have_one_map_and_one_score_each() -> None:
    model = randomize(small_model("patchconvnet_s20", per_class_tokens=True)).eval()
    summary = model.features(images_for(model)).summary
    assert summary.shape == (2, NUM_CLASSES, 48)
    changed = summary.clone()
    changed[:, 3] += 1.0
    difference = (model.head(changed) - model.head(summary)).abs().amax(dim=0)
    assert difference[3] > 1e-3
    assert difference[[0, 1, 2, 4, 5, 6]].max() == 0


def test_drop_path_is_uniform_or_grows_with_depth() -> None:
    def rates(name: str, **settings: object) -> list[float]:
        blocks = small_model(name, depth=5, drop_path=0.4, **settings).blocks
        return [round(block.feed_forward.branches[0].drop_path.rate, 3) for block in blocks]

    assert rates("cait_s24") == [0.4] * 5
    assert rates("deit_small") == [0.0, 0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("deit_small", (1, 1, 64, 64), r"expected images of shape \[batch, 3, height, width\], got \[1, 1, 64, 64\]"),
        ("cait_s24", (3, 64, 64), r"expected images of shape"),
        ("deit_small", (1, 3, 65, 64), r"65x64 can't be cut into patches of 16"),
        ("resmlp_s12", (1, 3, 96, 96), r"made for images of 64x64, not 96x96: create it with that image_size"),
    ],
)
def test_bad_images_are_told_in_a_line(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_model(name)(torch.zeros(shape))


@pytest.mark.parametrize("name", ["deit_small", "cait_s24", "resmlp_s12", "patchconvnet_s20", "timm/resnet18"])
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (None, r"expected a tensor of images \[batch, 3, height, width\], got NoneType"),
        (np.zeros((1, 3, 64, 64)), r"got ndarray"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), r"floating point: scale to \[0, 1\] and normalise them"),
    ],
)
def test_images_are_tensors_of_floating_point(name: str, images: Any, message: str) -> None:
    model = vitrail.create_model(name) if name.startswith("timm/") else small_model(name)
    with pytest.raises(ValueError, match=message):
        model(images)


@pytest.mark.parametrize("name", ["deit_small", "cait_s24", "resmlp_s12", "patchconvnet_s20"])
def test_empty_images_are_told(name: str) -> None:
    with pytest.raises(ValueError, match=r"an image of 0x64 is empty"):
        small_model(name)(torch.zeros(1, 3, 0, 64))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (1, r"levels must be a list of indices of blocks"),
        (None, r"levels must be a list of indices of blocks"),
        (("0",), r"levels must be a list of indices of blocks"),
        ((0.0,), r"levels must be a list of indices of blocks"),
        ((2,), r"level 2 is not one of the 2 blocks"),
    ],
)
@pytest.mark.parametrize("name", ["deit_small", "cait_s24", "resmlp_s12", "patchconvnet_s20"])
def test_bad_levels_are_told_in_a_line(name: str, levels: Any, message: str) -> None:
    model = small_model(name)
    with pytest.raises(ValueError, match=message):
        model.features(images_for(model), levels=levels)


@pytest.mark.parametrize("size", [np.int64(96), [64, 96], (np.int32(64), np.int64(96)), torch.Size([64, 96])])
def test_image_sizes_of_other_libraries_become_plain_numbers(size: Any) -> None:
    config = small_model("deit_small", image_size=size).config
    assert config.size in ((96, 96), (64, 96))
    assert json.loads(json.dumps(config.image_size)) in (96, [64, 96])


def test_a_resmlp_whose_patches_do_not_communicate_takes_any_size() -> None:
    model = randomize(small_model("resmlp_s12", communication="none")).eval()
    assert model.features(torch.randn(1, 3, 96, 32)).patches.shape == (1, 48, 6, 2)
    bound = small_model("resmlp_s12", communication="none", pool="class_mlp")
    with pytest.raises(ValueError, match="made for images of 64x64"):
        bound(torch.randn(1, 3, 96, 32))


@pytest.mark.parametrize("in_channels", [1, 3, 4])
def test_preprocessing_has_a_value_per_channel(in_channels: int) -> None:
    prepared = small_model("cait_s24", in_channels=in_channels).preprocessing
    assert len(prepared.mean) == len(prepared.std) == in_channels
    assert sum(prepared.mean) / in_channels == pytest.approx(0.449)
    assert sum(prepared.std) / in_channels == pytest.approx(0.226)
    assert prepared.crop_ratio == 1.0


@pytest.mark.parametrize("name", ["deit_small", "cait_s24", "resmlp_s12", "patchconvnet_s20"])
def test_a_folded_model_is_not_initialised_anew(name: str) -> None:
    model = small_model(name)
    assert not model.is_folded
    model.is_folded = True
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="fold the original again"):
        model.init_weights()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_deviation_of_initial_weights_is_a_setting() -> None:
    def deviation(**settings: float | None) -> float:
        model = vitrail.create_model("cait_xxs24", image_size=32, depth=2, num_classes=10, **settings)
        return model.get_parameter("blocks.0.communication.branches.0.mix.qkv.weight").std().item()

    assert deviation() == pytest.approx(0.02, rel=0.05)
    assert deviation(init_std=0.1) == pytest.approx(0.1, rel=0.05)
    assert deviation(init_std=None) == pytest.approx(192**-0.5, rel=0.05)
    with pytest.raises(ValueError, match="init_std must be"):
        deviation(init_std=-1)


@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24"])
def test_dropout_is_heard_in_training_and_not_after(name: str) -> None:
    plain, dropping = (randomize(small_model(name, drop_path=0.0, dropout=rate)) for rate in (0.0, 0.4))
    images = images_for(plain)
    assert torch.equal(plain.eval()(images), dropping.eval()(images))
    dropping.train()
    assert not torch.equal(dropping(images), dropping(images))
    assert torch.equal(plain.train()(images), plain(images))


def test_dropout_is_behind_every_linear_layer_of_a_branch_and_at_the_input() -> None:
    model = small_model("deit_tiny", depth=3, dropout=0.25)
    rates = [part.rate for part in model.modules() if isinstance(part, Dropout)]
    assert rates == [0.25] * 11  # of patches, of tokens, and three a block
    assert isinstance(model, VisionTransformer)
    model.train()
    tokens = model.drop_tokens(torch.ones(4, 1000))
    assert tokens.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert (tokens == 0.0).float().mean().item() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("settings", [{"communication": "conv"}, {"communication": "separable", "positions": True}])
def test_a_resmlp_of_convolutions_takes_any_size(settings: dict[str, Any]) -> None:
    model = randomize(small_model("resmlp_s12", **settings)).eval()
    images = torch.randn(2, 3, 96, 32)
    with torch.no_grad():
        features = model.features(images, levels=(0,))
        resized = model.resized((96, 32))
        torch.testing.assert_close(resized(images), model(images), atol=1e-5, rtol=1e-5)
    assert features.patches.shape == features.levels[0].shape == (2, 48, 6, 2)
    assert torch.equal(
        resized.blocks[0].communication.branches[0].mix.convolution.weight, model.state_dict()[CONVOLUTION]
    )


def test_positions_of_a_resmlp_move_with_its_size() -> None:
    model: Any = randomize(small_model("resmlp_s12", positions=True)).eval()
    plain = model.rebuilt(positions=False)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "positions" not in name})
    images = images_for(model)
    stem = model.stem
    with torch.no_grad():
        expected = model(images)
        shift = model.positions.patches.transpose(1, 2).unflatten(2, (4, 4))
        stem.register_forward_hook(lambda _module, _inputs, output: output - shift)
        torch.testing.assert_close(model(images), plain.eval()(images), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, plain(images), atol=1e-3)
    assert model.resized(96).positions.patches.shape == (1, 36, 48)
    assert model.parameter_layers()["positions.patches"] == 0
    assert "positions.patches" in model.parts()["positions"] & model.undecayed()


@pytest.mark.parametrize("norm", ["affine", "layer", "batch"])
def test_the_norm_of_a_resmlp_can_follow_the_sum(norm: str) -> None:
    """norm(x + scale * f(x)) in place of x + scale * f(norm(x))."""
    model = randomize(small_model("resmlp_s12", norm=norm, post_norm=True)).eval()
    residual = model.blocks[0].feed_forward
    branch, x = residual.branches[0], torch.randn(2, 16, 48)
    expected = residual.join.norm(x + branch.scale.weight * branch.mix(x))
    torch.testing.assert_close(residual(x), expected)


def test_batch_norm_of_patches_is_over_images_and_patches() -> None:
    model = small_model("resmlp_s12", norm="batch").train()
    x = torch.randn(4, 16, 48) * 3.0 + 1.0
    normal = model.blocks[0].feed_forward.branches[0].norm(x)
    torch.testing.assert_close(
        normal, (x - x.mean(dim=(0, 1))) / x.var(dim=(0, 1), correction=0).sqrt(), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", functional.relu),
        ("silu", functional.silu),
        ("hardswish", functional.hardswish),
        ("gelu", functional.gelu),
    ],
)
def test_activations_of_resmlp(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = randomize(small_model("resmlp_s12", activation=name))
    mix, x = model.blocks[0].feed_forward.branches[0].mix, torch.randn(2, 16, 48)
    torch.testing.assert_close(mix(x), mix.contract(function(mix.expand(x))))


MLP_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("deit_small", {}),
    ("resmlp_s12", {}),
    ("cait_s24", {}),
    ("patchconvnet_s20", {}),
    ("timm/test_resnet", {"num_classes": NUM_CLASSES}),
    ("timm/test_resnet", {"num_classes": NUM_CLASSES, "pool": "attention"}),
]


@pytest.mark.parametrize(("name", "settings"), MLP_MODELS)
def test_a_classifier_of_two_layers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Thesis 2.4.6: two linear layers with a batch normalisation and a ReLU between them."""
    make = vitrail.create_model if name.startswith("timm/") else small_model
    model: Any = randomize(make(name, classifier="mlp", **settings)).eval()
    images = torch.randn(2, 3, *model.config.size)
    head = model.head
    with torch.no_grad():
        summary = model.features(images).summary[:, 0]
        assert head.hidden.weight.shape == (2 * summary.shape[1], summary.shape[1])
        expected = head.linear(functional.relu(head.norm(head.hidden(summary))))
        torch.testing.assert_close(model(images), expected)
        torch.testing.assert_close(vitrail.fold(model)(images), expected, atol=1e-4, rtol=1e-4)
        vitrail.save_model(model, tmp_path / "model")
        torch.testing.assert_close(vitrail.load_model(tmp_path / "model")(images), expected)
    with pytest.raises(ValueError, match="timm has no"):
        vitrail.to_timm(model)
    assert all(name in model.parts()["head"] for name, _ in model.named_parameters() if name.startswith("head."))
    model.train()(images).sum().backward()
    assert head.hidden.weight.grad.abs().max() > 0


def test_a_classifier_of_two_layers_takes_the_trunk_of_a_linear_one() -> None:
    linear, model = randomize(small_model("deit_small")), small_model("deit_small", classifier="mlp")
    with pytest.raises(ValueError, match=r"an MLP as classifier and the weights have none: .*classifier='linear'"):
        vitrail.load_weights(model, linear.state_dict())
    vitrail.load_weights(model, linear.state_dict(), reset_head=True)
    images = images_for(model)
    assert torch.equal(model.eval().features(images).summary, linear.eval().features(images).summary)
    without = small_model("deit_small", classifier="mlp", num_classes=0)
    assert without(images).shape == (2, 48)


def test_fixup_leaves_the_hidden_layer_of_a_classifier_its_start() -> None:
    head: Any = small_model("deit_small", classifier="mlp", residual="fixup").head
    assert head.hidden.weight.abs().max() > 0 == head.linear.weight.abs().max()
