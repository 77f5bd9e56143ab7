"""Ratios of branches and parallel errors, computed by hand on networks whose branches are known."""

from typing import Any

import pytest
import torch
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail.inspection.branches import branch_ratios, watched_branches
from vitrail.inspection.layers import find_layers
from vitrail.inspection.parallel import parallel_errors, watched_pairs
from vitrail.layers.attention import SelfAttention
from vitrail.layers.mixing import CrossPatchLinear
from vitrail.layers.mlp import FeedForward
from vitrail.models.cait import CaiT
from vitrail.models.contract import Model
from vitrail.models.vit import VisionTransformer

OFFSET = 64.0  # at which a GELU is the identity


@torch.no_grad()
def linear_resmlp(*, cross_patch: float, feed_forward: float, layer_scale: float = 0.5, **settings: Any) -> Model:
    """A ResMLP whose branches multiply their input by these numbers and by LayerScale."""
    shape = {"image_size": (8, 16), "patch_size": 4, "dim": 8, "depth": 3, "mlp_ratio": 1.0, "num_classes": 3}
    model = vitrail.create_model("resmlp_s12", layer_scale=layer_scale, **(shape | settings))
    for part in model.modules():
        if isinstance(part, CrossPatchLinear):
            part.linear.weight.copy_(cross_patch * torch.eye(8))
            part.linear.bias.zero_()
        elif isinstance(part, FeedForward):
            part.expand.weight.copy_(torch.eye(8))
            part.expand.bias.fill_(OFFSET)
            part.contract.weight.copy_(feed_forward * torch.eye(8))
            part.contract.bias.fill_(-OFFSET * feed_forward)
    return model


def test_the_ratio_is_the_norm_of_what_a_branch_adds_over_that_of_its_input() -> None:
    model = linear_resmlp(cross_patch=1.0, feed_forward=-0.5)
    ratios = branch_ratios(model, torch.randn(5, 3, 8, 16))
    assert list(ratios) == ["cross-patch", "feed-forward"]
    assert ratios["cross-patch"] == pytest.approx([0.5] * 3, rel=1e-5)
    assert ratios["feed-forward"] == pytest.approx([0.25] * 3, rel=1e-4)


def test_parallel_branches_count_together() -> None:
    model = small_model("vit_b12x2", num_branches=2)
    with torch.no_grad():
        for block in model.blocks:
            for sign, branch in zip((1.0, -1.0), block.communication.branches, strict=True):
                assert isinstance(branch.mix, SelfAttention)
                branch.mix.proj.weight.zero_()
                branch.mix.proj.bias.fill_(sign)
    assert branch_ratios(model, images_for(model))["self-attention"] == [0.0, 0.0]


def test_class_layers_are_told_apart_and_a_ratio_agrees_with_the_layer_itself() -> None:
    model = randomize(small_model("cait_xxs24")).eval()
    images = images_for(model)
    ratios = branch_ratios(model, images)
    assert {kind: len(values) for kind, values in ratios.items()} == {
        "self-attention": 2,
        "feed-forward": 2,
        "class-attention": 2,
        "class feed-forward": 2,
    }
    assert isinstance(model, CaiT)
    with torch.no_grad():
        x, _ = model.embed(images)
        update = model.blocks[0].communication(x) - x
    expected = (update.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).mean().item()
    assert ratios["self-attention"][0] == pytest.approx(expected, rel=1e-4)


def test_patches_of_the_last_block_count_though_the_classifier_does_not_read_them() -> None:
    model = randomize(small_model("deit_tiny")).eval()
    images = images_for(model)
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        x = model.insert_tokens(model.embed(images)[0])
        x = model.blocks[0](x)
        update = model.blocks[1].communication(x) - x
    expected = (update.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).mean().item()
    assert branch_ratios(model, images)["self-attention"][1] == pytest.approx(expected, rel=1e-4)


def test_every_image_counts_alike_in_whatever_batches() -> None:
    model = randomize(small_model("patchconvnet_s60")).eval()
    images = images_for(model, batch=5)
    with torch.no_grad(), watched_branches(model) as means:
        model.features(images[:4])
        model.features(images[4:])
    whole = branch_ratios(model, images)
    assert list(whole) == ["convolution", "class-attention", "class feed-forward"]
    assert means.results()["convolution"] == pytest.approx(whole["convolution"], rel=1e-5)


def test_a_layer_after_one_that_adds_nothing_may_as_well_stand_beside_it() -> None:
    model = linear_resmlp(cross_patch=1.0, feed_forward=0.0)
    errors = parallel_errors(model, torch.randn(4, 3, 8, 16))
    assert errors["cross-patch"][0] is None  # there is no layer before the first
    assert errors["cross-patch"][1:] == [0.0, 0.0]


def test_the_parallel_error_of_linear_branches_is_known() -> None:
    # r(x) = r'(x) = x / 2: r'(x + r(x)) = 3/4 x and r'(x) = 1/2 x, so the error is (1/4) / (3/4).
    model = linear_resmlp(cross_patch=1.0, feed_forward=1.0)
    errors = parallel_errors(model, torch.randn(4, 3, 8, 16))
    assert errors["cross-patch"][1:] == pytest.approx([1 / 3] * 2, rel=1e-4)
    assert errors["feed-forward"] == pytest.approx([1 / 3] * 3, rel=1e-4)


def test_a_new_pass_does_not_follow_the_last_layer_of_the_one_before() -> None:
    model = linear_resmlp(cross_patch=1.0, feed_forward=1.0, depth=1)
    images = torch.randn(4, 3, 8, 16)
    with torch.no_grad(), watched_pairs(model) as means:
        model.features(images[:2])
        model.features(images[2:])
    assert means.results()["cross-patch"] == [None]


def test_no_error_is_given_across_the_place_where_the_class_token_enters() -> None:
    model = randomize(small_model("deit_tiny", depth=3, class_layer=1)).eval()
    errors = parallel_errors(model, images_for(model))
    assert [value is None for value in errors["self-attention"]] == [True, True, False]
    assert None not in errors["feed-forward"]


@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24", "resmlp_s12", "patchconvnet_s60", "vit_b12x2"])
def test_watching_changes_no_bit_of_the_answer_and_leaves_no_hook(name: str) -> None:
    model = randomize(small_model(name)).train()
    images = images_for(model)
    model.eval()
    before = model(images)
    with watched_branches(model), watched_pairs(model):
        assert torch.equal(model(images), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    model.train()
    branch_ratios(model, images)
    assert all(part.training for part in model.modules())


def test_a_timm_backbone_has_no_layers_but_those_of_our_pooling() -> None:
    assert find_layers(vitrail.create_model("timm/resnet18", image_size=32)) == ()
    pooled = vitrail.create_model("timm/resnet18", image_size=32, pool="attention")
    assert [layer.kind for layer in find_layers(pooled)] == ["class-attention", "class feed-forward"]
    assert branch_ratios(vitrail.create_model("timm/resnet18", image_size=32), torch.randn(2, 3, 32, 32)) == {}
