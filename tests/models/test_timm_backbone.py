"""timm backbones behind our contract: initial weights, maps, sizes, settings, levels and preprocessing."""

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import vitrail
from vitrail.layers.norm import EPSILON
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.models.timm_config import TimmConfig
from vitrail.models.timm_making import find_grid

NUM_CLASSES = 7


def make(name: str, **settings: Any) -> TimmBackbone:
    model = vitrail.create_model(f"timm/{name}", **{"num_classes": NUM_CLASSES, **settings})
    assert isinstance(model, TimmBackbone)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("resnet18", 32),
        ("vit_tiny_patch16_224", 16),
        ("swin_tiny_patch4_window7_224", 32),
        ("regnety_002", 32),
        ("convnext_atto", 32),
        ("cait_xxs24_224", 16),
        ("deit_tiny_distilled_patch16_224", 16),
    ],
)
@pytest.mark.parametrize("pool", ["average", "attention"])
@torch.no_grad()
def test_backbones_keep_the_contract(name: str, stride: int, pool: str) -> None:
    model = make(name, pool=pool, image_size=(64, 96))
    images = torch.randn(2, 3, 64, 96)
    features, dim = model.features(images), model.backbone.num_features
    assert features.summary.shape == (2, 1, dim)
    assert features.patches.shape == (2, dim, 64 // stride, 96 // stride)
    assert model(images).shape == (2, NUM_CLASSES)
    assert torch.equal(model.summarize(images), features.summary)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "deit_tiny_distilled_patch16_224"])
@pytest.mark.parametrize("pool", ["average", "attention"])
@torch.no_grad()
def test_distilled_ones_have_two_heads_of_ours_on_the_pooled_features(name: str, pool: str) -> None:
    model = make(name, pool=pool, image_size=64, distilled=True)
    images = torch.randn(2, 3, 64, 64)
    of_class, of_teacher = model.head.train()(model.summarize(images))
    model.head.eval()
    assert of_class.shape == of_teacher.shape == (2, NUM_CLASSES)
    assert not torch.allclose(of_class, of_teacher, atol=1e-6)
    assert torch.equal(model(images), (of_class + of_teacher) / 2)
    assert isinstance(model.train()(images), tuple)
    layers = model.parameter_layers()
    assert layers["head.distilled.weight"] == max(layers.values())
    with pytest.raises(ValueError, match=r"timm has no such (attention pooling|second head)"):
        vitrail.to_timm(model)


def test_weights_of_timm_start_a_distilled_backbone_whose_heads_are_new() -> None:
    source, model = make("resnet18"), make("resnet18", distilled=True)
    state = source.backbone.state_dict()
    with pytest.raises(ValueError, match="another head: pass reset_head=True"):
        vitrail.load_weights(model, state)
    vitrail.load_weights(model, state, reset_head=True)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model.features(images).patches, source.features(images).patches)


def test_a_plain_backbone_is_timms_own_model() -> None:
    model = make("resnet18")
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(images), model.backbone(images))
    assert torch.equal(model.features(images).patches, model.backbone.forward_features(images))


@pytest.mark.parametrize("pool", ["average", "attention"])
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
@torch.no_grad()
def test_init_weights_sets_everything(name: str, pool: str) -> None:
    model = make(name, pool=pool, image_size=64)
    for value in (*model.parameters(), *model.buffers()):
        value.fill_(math.nan if value.is_floating_point() else -(10**6))
    model.init_weights()
    for key, value in (*model.named_parameters(), *model.named_buffers()):
        assert value.isfinite().all(), key
        assert value.min() > -(10**6), key
    fresh = dict(make(name, pool=pool, image_size=64).named_buffers())
    for key, value in model.named_buffers():
        assert torch.equal(value, fresh[key]), key


def test_the_pooling_starts_as_our_own_models_do() -> None:
    model = make("resnet18", pool="attention", num_classes=200)
    assert isinstance(model.norm, nn.LayerNorm)
    assert model.norm.eps == EPSILON
    linear = [part for part in (*model.class_stage.modules(), *model.head.modules()) if isinstance(part, nn.Linear)]  # type: ignore[union-attr]
    for part in linear:
        assert abs(part.weight.std().item() - 0.02) < 0.003
        assert part.bias is None or not part.bias.any()


def test_patches_are_normed_with_attention_pooling() -> None:
    model = make("regnety_002", pool="attention")
    patches = model.features(torch.randn(2, 3, 64, 64)).patches
    assert torch.allclose(patches.mean(dim=1), torch.zeros(2, 2, 2), atol=1e-4)
    assert torch.allclose(patches.std(dim=1, correction=0), torch.ones(2, 2, 2), atol=1e-2)


@torch.no_grad()
def test_tokens_are_the_patches_in_their_order() -> None:
    images = torch.randn(1, 3, 32, 64)
    for name in ("vit_tiny_patch16_224", "cait_xxs24_224"):
        model = make(name, image_size=(32, 64))
        tokens = model.backbone.forward_features(images)
        assert tokens.shape[1] == 9
        assert torch.equal(model.features(images).patches.flatten(2).transpose(1, 2), tokens[:, 1:])


@torch.no_grad()
def test_channels_last_is_known_by_name_not_by_shape() -> None:
    model = make("swin_tiny_patch4_window7_224", image_size=64)
    dim = model.backbone.num_features
    output = torch.randn(1, dim, 2, dim)
    assert torch.equal(model.as_maps(output, torch.zeros(1, 3, 64, 64)), output.permute(0, 3, 1, 2))


@pytest.mark.parametrize(("name", "size"), [("pit_ti_224", 64), ("pit_ti_224", 32), ("coat_tiny", 64)])
@torch.no_grad()
def test_a_backbone_without_a_map_says_so(name: str, size: int) -> None:
    images = torch.randn(1, 3, size, size)
    with pytest.raises(ValueError, match="gives no single map of patches"):
        make(name, image_size=size, pool="attention")(images)
    plain = make(name, image_size=size)
    assert plain(images).shape == (1, NUM_CLASSES)
    with pytest.raises(ValueError, match="it can only classify, with pool='average'"):
        plain.features(images)


def test_grids_have_the_aspect_of_the_image() -> None:
    assert find_grid(24, size=(64, 96)) == (4, 6)
    assert find_grid(4, size=(96, 128)) == (2, 2)
    assert find_grid(1, size=(64, 64)) == (1, 1)
    for count in (-1, 0, 2, 26, 27):
        assert find_grid(count, size=(64, 64)) is None


def test_image_size_is_timms_where_none_is_given() -> None:
    config = TimmConfig(timm_name="resnet18")
    assert TimmBackbone(config).config.image_size == (224, 224)
    assert config.image_size is None


@torch.no_grad()
def test_image_size_takes_effect() -> None:
    model = make("vit_tiny_patch16_224", image_size=[32, 48])
    assert model.config.image_size == (32, 48)
    assert model.backbone.pos_embed.shape[1] == 1 + 2 * 3
    with pytest.raises(ValueError, match="made for images of 32x48, not 64x64: create it with that image_size"):
        model(torch.zeros(1, 3, 64, 64))
    assert make("resnet18", image_size=64)(torch.zeros(1, 3, 96, 32)).shape == (1, NUM_CLASSES)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet18", {"in_channels": 0}, "in_channels must be a whole number of at least 1, not 0"),
        ("resnet18", {"num_classes": -1}, "num_classes must be a whole number of at least 0, not -1"),
        ("resnet18", {"num_heads": 1.5, "pool": "attention"}, "num_heads must be a whole number"),
        ("resnet18", {"num_heads": 3, "pool": "attention"}, "num_heads 3 does not divide the 512 channels"),
        ("resnet18", {"num_heads": 2}, "num_heads is a setting of pool='attention'"),
        ("resnet18", {"pool": "max"}, "pool must be average or attention"),
        ("resnet18", {"image_size": "64"}, "image_size must be a whole number"),
        ("resnet18", {"image_size": (64, 64, 64)}, "image_size must be a whole number"),
        ("resnet18", {"image_size": 0}, "image_size must be a whole number"),
        ("resnet18", {"drop_path": 1.0}, r"drop_path must be in \[0, 1\), not 1.0"),
        ("vgg11", {"drop_path": 0.1}, "timm/vgg11 has no setting drop_path"),
        ("efficientformer_l1", {"image_size": 64}, "can't take images of 64x64: leave image_size at 224x224"),
        ("resnet18", {"timm_name": "resnet34"}, "timm/resnet18 has no setting 'timm_name'"),
        ("resnet81", {}, "timm has no model 'resnet81': did you mean"),
        ("resnet18", {"options": [8]}, "options are names and values for timm's model"),
        ("resnet18", {"options": {"img_size": 64}}, "options: img_size is the setting image_size of ours"),
        ("resnet18", {"options": {"pretrained": True}}, "options: pretrained does not say how a backbone is built"),
        ("resnet18", {"options": {"xyz": 1}}, "timm/resnet18 can't be built with these settings: .*'xyz'"),
        ("resnet18", {"options": {"channels": 8}}, "timm/resnet18 can't be built with these settings"),
        ("resnet18", {"options": {"output_stride": 7}}, "timm/resnet18 can't be built with these settings"),
    ],
)
def test_bad_settings_are_told_in_a_line(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(name, **settings)
    assert "\n" not in str(caught.value)


def test_the_name_is_not_listed_as_a_setting() -> None:
    with pytest.raises(ValueError, match="it has image_size, in_channels") as caught:
        make("resnet18", xyz=1)
    assert "timm_name" not in str(caught.value)


def test_options_reach_the_backbone_and_stay_with_it(tmp_path: Path) -> None:
    options = {"channels": [8, 16, 24, 32], "stem_width": 4, "stem_type": "deep"}
    model = make("resnet10t", image_size=32, options=options).eval()
    assert model.backbone.num_features == 32
    vitrail.save_model(model, tmp_path / "narrow")
    loaded = vitrail.load_model(tmp_path / "narrow").eval()
    assert loaded.config == model.config
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))


def test_drop_path_reaches_the_backbone() -> None:
    assert make("convnext_atto", drop_path=0.3).backbone.stages[-1].blocks[-1].drop_path.rate == pytest.approx(0.3)


@torch.no_grad()
def test_levels_are_timms_stages_in_the_order_asked_for() -> None:
    model, images = make("resnet18"), torch.randn(1, 3, 64, 64)
    plain, features = model.features(images), model.features(images, levels=(-1, 1, -1))
    assert [level.shape[1:] for level in features.levels] == [(512, 2, 2), (64, 16, 16), (512, 2, 2)]
    assert torch.equal(features.patches, plain.patches)
    assert torch.equal(features.summary, plain.summary)
    blocks = make("vit_tiny_patch16_224", image_size=32, pool="attention")
    seen: list[torch.Tensor] = []
    blocks.backbone.blocks[3].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    (level,) = blocks.features(images[..., :32, :32], levels=[3]).levels
    assert torch.equal(level.flatten(2).transpose(1, 2), seen[0][:, 1:])


def test_levels_that_are_not_there() -> None:
    images = torch.zeros(1, 3, 64, 64)
    with pytest.raises(ValueError, match="level 5 is not one of the 5 stages"):
        make("resnet18").features(images, levels=[5])
    with pytest.raises(ValueError, match="levels must be a list of indices"):
        make("resnet18").features(images, levels=["layer4"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="levels of timm/densenet121 are not offered"):
        make("densenet121").features(images, levels=[0])


def test_preprocessing_fits_the_channels() -> None:
    assert make("resnet18").preprocessing.mean == timm.data.IMAGENET_DEFAULT_MEAN
    prepared = make("resnet18", in_channels=5).preprocessing
    assert prepared.mean == pytest.approx((0.449,) * 5)
    assert prepared.std == pytest.approx((0.226,) * 5)
    assert make("resnet18", in_channels=1)(torch.zeros(1, 1, 64, 64)).shape == (1, NUM_CLASSES)


def test_small_images_keep_their_map_in_a_resnet() -> None:
    images = torch.zeros(1, 3, 32, 32)
    plain, small = (
        make("resnet18", image_size=32, num_classes=5, small_images=value).eval() for value in (False, True)
    )
    assert plain.features(images).patches.shape[2:] == (1, 1)
    assert small.features(images).patches.shape[2:] == (4, 4)
    assert small.backbone.conv1.weight.shape == (64, 3, 3, 3)
    small.init_weights()
    with pytest.raises(ValueError, match="timm/convnext_atto has no stem of a ResNet"):
        make("convnext_atto", small_images=True)
