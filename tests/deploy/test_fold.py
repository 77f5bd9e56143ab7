"""fold gives the same outputs with fewer parts."""

from typing import Any

import pytest
import torch
from shrunk import images_for, randomize, small_model
from torch import nn

import vitrail
from vitrail.deploy.folded_layers import FoldedClassAttention
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
    ("cait_s24", {"class_depth": 3, "distilled": True, "class_in_keys": False}),
    ("cait_s24", {"class_layer_scale": False}),
    ("resmlp_s12", {"norm": "layer"}),
    ("resmlp_s12", {"pool": "class_mlp"}),
    *[("resmlp_s12", {"communication": kind}) for kind in ("none", "mlp", "conv", "depthwise", "separable")],
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
    monkeypatch.setattr("vitrail.deploy.folding.has_native_bfloat16", lambda: is_native)
    model = randomize(small_model("cait_s24")).eval()
    images = images_for(model)
    with torch.inference_mode():
        expected = model(images)
        folded = vitrail.fold(model.bfloat16())
        logits = folded(images.bfloat16())
    assert logits.dtype == torch.bfloat16
    assert folded.blocks[0].feed_forward.mix.expand.weight.dtype == (torch.bfloat16 if is_native else torch.float32)
    assert (logits.float() - expected).abs().max() < 0.05 * expected.abs().max()


def test_fold_refuses_what_is_not_a_model_of_ours() -> None:
    with pytest.raises(ValueError, match="not Linear"):
        vitrail.fold(nn.Linear(2, 2))  # type: ignore[arg-type]
