"""to_timm: what timm takes strictly, and why other models have no names there."""

from typing import Any

import pytest
import timm
import torch
from shrunk import images_for, randomize, small_model

from vitrail import create_model, to_timm

SMALL = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_classes": 7}
SMALL_HEADS = {**SMALL, "num_heads": 4}
PLAIN_AVERAGE = {"class_token": False, "global_pool": "avg", "fc_norm": False}


@pytest.mark.parametrize(
    ("name", "settings", "timm_name", "timm_settings"),
    [
        ("deit_tiny", {}, "deit_tiny_patch16_224", SMALL_HEADS),
        ("deit_tiny", {"layer_scale": 0.1}, "deit_tiny_patch16_224", {**SMALL_HEADS, "init_values": 0.1}),
        ("deit_tiny", {"pool": "average"}, "deit_tiny_patch16_224", {**SMALL_HEADS, **PLAIN_AVERAGE}),
        ("deit_tiny_distilled", {}, "deit_tiny_distilled_patch16_224", SMALL_HEADS),
        ("deit3_small", {}, "deit3_small_patch16_224", SMALL_HEADS),
        ("deit3_small", {"image_size": (32, 80)}, "deit3_small_patch16_224", {**SMALL_HEADS, "img_size": (32, 80)}),
        ("vit_s18x2", {}, "vit_small_patch16_18x2_224", {**SMALL_HEADS, "init_values": 0.0, "no_embed_class": True}),
        ("cait_xxs24", {"class_depth": 1}, "cait_xxs24_224", {**SMALL_HEADS, "depth_token_only": 1}),
        ("resmlp_s12", {"dim": 384, "depth": 12}, "resmlp_12_224", {"img_size": 64, "num_classes": 7}),
    ],
)
def test_timm_takes_it_strictly(
    name: str, settings: dict[str, Any], timm_name: str, timm_settings: dict[str, Any]
) -> None:
    model = randomize(small_model(name, **settings)).eval()
    theirs = timm.create_model(timm_name, **timm_settings).eval()
    theirs.load_state_dict(to_timm(model), strict=True)
    images = images_for(model)
    torch.testing.assert_close(model(images), theirs(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("patchconvnet_s20", {}, "it has no patchconvnet"),
        ("vit_b12_hmlp", {}, "stem='hmlp_bn', timm's has 'linear'"),
        ("deit_tiny", {"residual": "rezero"}, "residual='rezero'"),
        ("deit_tiny", {"class_layer": 1}, "class_layer=1"),
        ("deit_tiny", {"talking_heads": True}, "talking_heads=True"),
        ("deit_tiny", {"distilled": True, "class_position": False}, "positions for its special tokens"),
        ("cait_xxs24", {"layer_scale": None}, "always has LayerScale and a class token"),
        ("cait_xxs24", {"class_depth": 0}, "always has LayerScale and a class token"),
        ("cait_xxs24", {"distilled": True}, "distilled=True"),
        ("cait_xxs24", {"num_branches": 2}, "num_branches=2"),
        ("resmlp_s12", {"communication": "none"}, "communication='none'"),
        ("resmlp_s12", {"norm": "layer"}, "norm='layer'"),
        ("resmlp_s12", {"distilled": True}, "distilled=True"),
    ],
)
def test_what_timm_does_not_have(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"timm has no {name} as this one: .*{text}"):
        to_timm(small_model(name, **settings))


def test_the_export_is_a_copy() -> None:
    model: Any = small_model("deit_tiny")
    to_timm(model)["norm.weight"].fill_(7.0)
    assert torch.equal(model.norm.weight, torch.ones(48))


def test_a_timm_backbone_gives_its_own_names() -> None:
    model: Any = create_model("timm/resnet18", num_classes=3)
    exported = to_timm(model)
    timm.create_model("resnet18", num_classes=3).load_state_dict(exported, strict=True)
