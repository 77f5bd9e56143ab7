"""fold gives the same outputs with fewer parts."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from shrunk import images_for, randomize, small_model
from torch import nn

import vitrail
from vitrail.inference.folded_layers import FoldedClassAttention
from vitrail.layers.attention import SelfAttention
from vitrail.layers.norm import Affine
from vitrail.layers.residual import LayerScale
from vitrail.models.catalog import CATALOG

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("deit_small", {"num_branches": 3, "layer_scale": 0.1}),
    ("deit_small", {"num_branches": 2, "talking_heads": True}),
    ("deit_small", {"pool": "average"}),
    ("deit_small", {"class_layer": 1}),
    *[("deit_small", {"residual": style}) for style in ("rezero", "fixup", "t_fixup", "post_norm", "linear_shortcut")],
    *[("deit_small", {"residual": style}) for style in ("constant_scaling", "exclusive_gating", "shortcut_gating")],
    *[("deit_small", {"residual": style, "residual_norm": False}) for style in ("rezero", "fixup", "t_fixup")],
    ("deit_small", {"residual": "fixup", "residual_norm": False, "num_branches": 2}),
    ("cait_s24", {"class_depth": 3, "distilled": True, "class_in_keys": False}),
    ("cait_s24", {"class_layer_scale": False}),
    ("resmlp_s12", {"norm": "layer"}),
    ("resmlp_s12", {"pool": "class_mlp"}),
    ("resmlp_s12", {"distilled": True}),
    *[("resmlp_s12", {"communication": kind}) for kind in ("none", "mlp", "conv", "depthwise", "separable")],
    *[("resmlp_s12", {"activation": kind}) for kind in ("relu", "silu", "hardswish")],
    ("resmlp_s12", {"norm": "batch"}),
    ("resmlp_s12", {"norm": "batch", "post_norm": True}),
    ("resmlp_s12", {"post_norm": True}),
    ("resmlp_s12", {"post_norm": True, "communication": "depthwise"}),
    ("resmlp_s12", {"positions": True}),
    ("resmlp_s12", {"positions": True, "communication": "separable"}),
    ("patchconvnet_s20", {"norm": "batch"}),
    ("patchconvnet_s20", {"num_heads": 4}),
    ("patchconvnet_s20", {"per_class_tokens": True}),
    ("patchconvnet_s20", {"per_class_tokens": True, "num_classes": 99}),
    ("patchconvnet_s20", {"pool": "average"}),
]
EVERYTHING: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in CATALOG] + VARIANTS


@pytest.mark.parametrize(("name", "settings"), EVERYTHING, ids=[f"{name} {settings}" for name, settings in EVERYTHING])
def test_folded_outputs_are_equal(name: str, settings: dict[str, object]) -> None:
    model = randomize(small_model(name, **settings)).eval()
    folded = vitrail.fold(model)
    images = images_for(model)
    with torch.inference_mode():
        expected, found = model.features(images), folded.features(images)
        logits, folded_logits = model(images), folded(images)
    scale = max(1.0, logits.abs().max().item())
    assert (logits - folded_logits).abs().max() < 1e-4 * scale
    assert (expected.patches - found.patches).abs().max() < 1e-4
    assert (expected.summary - found.summary).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("name", "settings", "operation", "in_block", "in_last"),
    [
        ("patchconvnet_s20", {"norm": "layer"}, "aten.conv", 5, 5),  # expand, spatial, squeeze-excite's two, contract
        ("patchconvnet_s20", {"norm": "batch"}, "aten.conv", 5, 5),
        ("resmlp_s12", {}, "aten.matmul", 1, 1),  # the product of patches, with a matrix that is not copied
        ("deit_tiny", {}, "aten.linear", 6, 4),  # queries, keys, values; of the last block's class token queries alone
    ],
)
def test_engines_are_given_the_operations_they_are_fast_in_with_the_same_answers(
    name: str, settings: dict[str, str], operation: str, in_block: int, in_last: int
) -> None:
    model = randomize(small_model(name, **settings)).eval()
    images = images_for(model)
    program = torch.export.export(vitrail.fold(model), (images,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-4)
    layers = model.get_submodule("blocks")
    inside = [node for node in program.graph.nodes if operation in str(node.target) and is_of(node, "blocks")]
    assert len(inside) == in_block * (len(list(layers.children())) - 1) + in_last


def is_of(node: torch.fx.Node, part: str) -> bool:
    """Whether an operation of a recorded graph is done by a part of the model."""
    return any(f"{part}." in path for path, _ in node.meta["nn_module_stack"].values())


def test_the_last_layer_of_a_folded_resmlp_sees_the_average_alone() -> None:
    model = randomize(small_model("resmlp_s12")).eval()
    folded, images = vitrail.fold(model), images_for(model)
    seen: list[torch.Tensor] = []
    last = list(folded.get_submodule("blocks").children())[-1].get_submodule("feed_forward.mix.contract")
    last.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        torch.testing.assert_close(folded.summarize(images), model.summarize(images), rtol=1e-4, atol=1e-4)
    assert seen[0].shape[:2] == (len(images), 1)


def test_the_model_itself_is_left_alone() -> None:
    model = randomize(small_model("vit_b12_hmlp", num_branches=2, layer_scale=0.1)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    vitrail.fold(model)
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_scales_norms_and_branches_are_gone() -> None:
    folded = vitrail.fold(small_model("vit_b18x2", layer_scale=0.1, stem="hmlp_bn"))
    attention = [module for module in folded.modules() if isinstance(module, SelfAttention)]
    assert len(attention) == 2
    assert {module.num_heads for module in attention} == {8}
    kinds = {type(module) for module in folded.modules()}
    assert not kinds & {LayerScale, Affine, nn.BatchNorm2d}
    weighted = [module for module in folded.modules() if isinstance(module, nn.LayerNorm) and module.elementwise_affine]
    assert weighted == [folded.norm]
    trunk = vitrail.fold(small_model("resmlp_s12")).get_submodule("blocks")
    assert not any(isinstance(module, (LayerScale, Affine)) for module in trunk.modules())


def test_class_attention_projects_no_patch_when_there_are_few_queries() -> None:
    def projects_queries(**settings: object) -> bool:
        folded = vitrail.fold(small_model("patchconvnet_s20", per_class_tokens=True, **settings))
        return any(isinstance(module, FoldedClassAttention) for module in folded.modules())

    assert projects_queries(num_classes=10)
    assert not projects_queries(num_classes=1000)


def test_a_timm_backbone_keeps_its_layers_and_folds_ours() -> None:
    model = vitrail.create_model("timm/resnet18", pool="attention", num_classes=7).eval()
    folded = vitrail.fold(model)
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.allclose(model(images), folded(images), atol=1e-5)
    assert any(isinstance(module, FoldedClassAttention) for module in folded.modules())


@pytest.mark.parametrize("is_native", [True, False])
def test_sixteen_bits_stay_sixteen_bits_outside(is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.inference.folding.has_native_bfloat16", lambda: is_native)
    model = randomize(small_model("cait_s24")).eval()
    images = images_for(model)
    with torch.inference_mode():
        expected = model(images)
        folded = vitrail.fold(model.bfloat16())
        logits = folded(images.bfloat16())
        features = folded.features(images.bfloat16(), levels=(0,))
    assert logits.dtype == torch.bfloat16
    assert {each.dtype for each in (features.summary, features.patches, *features.levels)} == {torch.bfloat16}
    assert {weight.dtype for weight in folded.parameters()} == {torch.bfloat16 if is_native else torch.float32}
    assert (logits.float() - expected).abs().max() < 0.05 * expected.abs().max()


def test_an_emulated_type_costs_no_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 only the weights and the answer are rounded to bf16, nothing in between."""
    monkeypatch.setattr("vitrail.inference.folding.has_native_bfloat16", lambda: False)
    model = randomize(small_model("cait_s24")).eval().bfloat16()
    images = images_for(model).bfloat16()
    with torch.inference_mode():
        logits = vitrail.fold(model)(images)
        expected = vitrail.fold(model.float())(images.float())
    assert torch.equal(logits, expected.bfloat16())


@pytest.mark.parametrize("name", ["deit3_small", "resmlp_s12", "cait_s24"])
def test_autocast_keeps_the_residual_stream_in_float32(name: str) -> None:
    folded = vitrail.fold(randomize(small_model(name)))
    seen = []
    for block in folded.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        folded(images_for(folded))
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("name", ["cait_s24", "vit_s18x2", "resmlp_s12", "patchconvnet_s20", "vit_b12_hmlp"])
def test_folding_needs_no_particular_device(name: str) -> None:
    with torch.device("meta"):
        folded = vitrail.fold(small_model(name))
        assert folded(torch.empty(2, 3, *folded.config.size)).shape == (2, 7)


def test_folded_models_can_be_copied_and_differentiated() -> None:
    folded = copy.deepcopy(vitrail.fold(randomize(small_model("cait_s24"))))
    images = images_for(folded).requires_grad_()
    folded(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["cait_s24", "deit3_small"])
def test_exporters_see_plain_operations(name: str) -> None:
    """Engines that read traces don't follow a product into a view of what it adds to."""
    folded = vitrail.fold(randomize(small_model(name)))
    images = images_for(folded)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(folded, images, check_trace=False)
        assert not {"aten::addmm_", "aten::mm"} & {node.kind() for node in traced.inlined_graph.nodes()}
        torch.testing.assert_close(traced(images), folded(images), atol=1e-5, rtol=1e-5)


def test_what_needs_the_original_refuses_a_folded_model(tmp_path: Path) -> None:
    model = small_model("cait_s24")
    folded = vitrail.fold(model)
    for action in (
        lambda: vitrail.fold(folded),
        lambda: vitrail.to_timm(folded),
        lambda: vitrail.complexity(folded),
        lambda: vitrail.load_weights(folded, model.state_dict()),
        lambda: vitrail.save_model(folded, tmp_path / "folded"),
        folded.init_weights,
    ):
        with pytest.raises(ValueError, match="fold"):
            action()


def test_fold_refuses_what_is_not_a_model_of_ours() -> None:
    with pytest.raises(ValueError, match="not Linear"):
        vitrail.fold(nn.Linear(2, 2))  # type: ignore[arg-type]
