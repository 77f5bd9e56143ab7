"""Every parameter of every family in its group: decayed or not, and at which layer; and the optimizers' steps."""

import copy
from typing import Any

import pytest
import torch
from shrunk import NUM_CLASSES, small_model
from torch import nn

import vitrail
from vitrail.layers.classifier import PerClassClassifier
from vitrail.models.catalog import CATALOG
from vitrail.models.contract import Model
from vitrail.training.loop.optimizer import OptimizerSettings, make_optimizer, set_lr

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "distilled cait": ("cait_xxs24", {"distilled": True}),
    "scalars": ("cait_xxs24", {"residual": "scalar", "layer_scale": 1e-5}),
    "rezero": ("deit_tiny", {"residual": "rezero"}),
    "fixup": ("deit_tiny", {"residual": "fixup"}),
    "gates": ("deit_tiny", {"residual": "exclusive_gating"}),
    "linear shortcut": ("deit_tiny", {"residual": "linear_shortcut"}),
    "post norm": ("deit_tiny", {"residual": "post_norm"}),
    "late class token": ("deit_tiny", {"class_layer": 1}),
    "average of patches": ("deit_tiny", {"pool": "average"}),
    "layer norm": ("resmlp_s12", {"norm": "layer"}),
    "no communication": ("resmlp_s12", {"communication": "none"}),
    "separable": ("resmlp_s12", {"communication": "separable"}),
    "class mlp": ("resmlp_s12", {"pool": "class_mlp"}),
    "token per class": ("patchconvnet_s20", {"per_class_tokens": True}),
    "batch norm": ("patchconvnet_s20", {"norm": "batch"}),
    "one class": ("patchconvnet_s20", {"num_classes": 1}),
}
TIMM_MODELS = ("resnet18", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "convnext_atto", "regnety_002")


def build(case: str) -> Model:
    if case.startswith("timm/"):
        return vitrail.create_model(case, num_classes=NUM_CLASSES)
    name, settings = VARIANTS.get(case, (case, {}))
    return small_model(name, **settings)


def weights_of_products(model: nn.Module) -> set[str]:
    """The names of all weights that multiply: what decay is for, found by the kind of layer."""
    layers = (nn.Linear, nn.Conv2d, PerClassClassifier)
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, layers)}


def names_by_group(optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    return {group["name"]: group["param_names"] for group in optimizer.param_groups}


@pytest.mark.parametrize("case", [*CATALOG, *VARIANTS, *(f"timm/{name}" for name in TIMM_MODELS)])
def test_weights_of_products_decay_and_nothing_else_does(case: str) -> None:
    model = build(case)
    optimizer = make_optimizer(model, OptimizerSettings(weight_decay=0.3))
    groups = names_by_group(optimizer)
    assert set(groups["decay"]) == weights_of_products(model)
    assert sorted(groups["decay"] + groups["no_decay"]) == sorted(name for name, _ in model.named_parameters())
    assert {group["name"]: group["weight_decay"] for group in optimizer.param_groups} == {"decay": 0.3, "no_decay": 0}


def test_the_groups_of_a_cait_by_name() -> None:
    groups = names_by_group(make_optimizer(build("distilled cait"), OptimizerSettings()))
    block = "blocks.0.communication.branches.0"
    assert {f"{block}.mix.qkv.weight", f"{block}.mix.before_softmax.weight", "head.distilled.weight"} <= set(
        groups["decay"]
    )
    assert {
        "positions.patches",
        "class_stage.tokens",
        "class_stage.blocks.1.feed_forward.branches.0.scale.weight",
        f"{block}.norm.weight",
        f"{block}.mix.before_softmax.bias",
        f"{block}.scale.weight",
        "norm.bias",
    } <= set(groups["no_decay"])


def test_timms_vectors_of_three_axes_and_its_positions_do_not_decay() -> None:
    for name, spared in (
        ("resmlp_12_224", "backbone.blocks.0.norm1.alpha"),
        ("vit_tiny_patch16_224", "backbone.pos_embed"),
        ("swin_tiny_patch4_window7_224", "backbone.layers.0.blocks.0.attn.relative_position_bias_table"),
    ):
        model = vitrail.create_model(f"timm/{name}", num_classes=NUM_CLASSES)
        assert spared in names_by_group(make_optimizer(model, OptimizerSettings()))["no_decay"]


def scale_by_name(model: Model, layer_decay: float) -> dict[str, float]:
    optimizer = make_optimizer(model, OptimizerSettings(lr=2.0, layer_decay=layer_decay))
    assert all(group["lr"] == 2.0 * group["lr_scale"] for group in optimizer.param_groups)
    return {name: group["lr_scale"] for group in optimizer.param_groups for name in group["param_names"]}


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "cait_xxs24", "resmlp_s12", "patchconvnet_s20"])
def test_layer_decay_goes_from_the_head_down_to_the_stem(name: str) -> None:
    model = small_model(name)
    scales = scale_by_name(model, 0.5)
    class_depth = {"cait_xxs24": 2, "patchconvnet_s20": 1}.get(name, 0)
    head = 1 + 2 + class_depth  # the stem, two blocks and those of the class stage lie below
    expected = {"stem.": 0, "positions.": 0, "tokens": 0, "blocks.0.": 1, "blocks.1.": 2, "norm.": head, "head.": head}
    expected |= {"class_stage.tokens": 3, "class_stage.blocks.0.": 3, "class_stage.blocks.1.": 4}
    assert set(scales) == {name for name, _ in model.named_parameters()}
    for parameter, scale in scales.items():
        layer = next(layer for prefix, layer in expected.items() if parameter.startswith(prefix))
        assert scale == 0.5 ** (head - layer), parameter


@pytest.mark.parametrize(
    ("name", "lowest", "block", "head", "num_layers"),
    [
        ("resnet18", "conv1.weight", "layer4.1.conv2.weight", "fc.weight", 1 + 8 + 1),
        ("vit_tiny_patch16_224", "pos_embed", "blocks.11.attn.qkv.weight", "head.weight", 1 + 12 + 1),
        ("convnext_atto", "stem.0.weight", "stages.3.blocks.1.conv_dw.weight", "head.fc.weight", 1 + 12 + 1),
    ],
)
def test_layer_decay_divides_timm_models_as_timm_does(
    name: str, lowest: str, block: str, head: str, num_layers: int
) -> None:
    model = vitrail.create_model(f"timm/{name}", num_classes=NUM_CLASSES)
    scales = scale_by_name(model, 0.5)
    assert set(scales) == {name for name, _ in model.named_parameters()}
    assert scales[f"backbone.{head}"] == 1.0
    assert scales[f"backbone.{block}"] == 0.5
    assert scales[f"backbone.{lowest}"] == 0.5 ** (num_layers - 1)


def test_our_pooling_of_a_timm_model_is_a_layer_between_its_last_and_the_head() -> None:
    scales = scale_by_name(vitrail.create_model("timm/resnet18", num_classes=NUM_CLASSES, pool="attention"), 0.5)
    assert scales["head.linear.weight"] == scales["norm.weight"] == 1.0
    assert scales["class_stage.tokens"] == scales["class_stage.blocks.0.communication.branches.0.scale.weight"] == 0.5
    assert scales["backbone.layer4.1.conv2.weight"] == 0.25
    assert scales["backbone.conv1.weight"] == 0.5**10


def test_names_of_groups_sort_from_the_lowest_layer_up() -> None:
    optimizer = make_optimizer(small_model("deit3_small", depth=12), OptimizerSettings(layer_decay=0.75))
    names = [group["name"] for group in optimizer.param_groups]
    assert names[:2] == ["layer_00.decay", "layer_00.no_decay"]
    assert names[-2:] == ["layer_13.decay", "layer_13.no_decay"]
    deep = make_optimizer(small_model("patchconvnet_s20", depth=110), OptimizerSettings(layer_decay=0.99))
    for scales in ([group["lr_scale"] for group in made.param_groups] for made in (optimizer, deep)):
        assert scales == sorted(scales)


def test_the_schedules_lr_reaches_every_group_by_its_scale() -> None:
    optimizer = make_optimizer(small_model("deit3_small"), OptimizerSettings(layer_decay=0.5))
    set_lr(optimizer, 0.8)
    assert {group["name"]: group["lr"] for group in optimizer.param_groups if "no_decay" not in group["name"]} == {
        "layer_00.decay": 0.1,
        "layer_01.decay": 0.2,
        "layer_02.decay": 0.4,
        "layer_03.decay": 0.8,
    }


def test_frozen_parameters_are_left_out() -> None:
    model = small_model("cait_xxs24", layer_scale_frozen=True)
    model.get_submodule("stem").requires_grad_(False)
    optimized = {
        name for names in names_by_group(make_optimizer(model, OptimizerSettings())).values() for name in names
    }
    left_out = {name for name, _ in model.named_parameters()} - optimized
    assert left_out == {
        name for name, _ in model.named_parameters() if name.startswith("stem.") or name.endswith(".scale.weight")
    }
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="every parameter of the model is frozen"):
        make_optimizer(model, OptimizerSettings())


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
def test_a_step_without_gradients_shrinks_what_decays_and_moves_nothing_else(name: str) -> None:
    model = small_model("resmlp_s12")
    optimizer = make_optimizer(model, OptimizerSettings(name=name, lr=0.01, weight_decay=0.1))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == weights_of_products(model)
    kernel = model.get_parameter("head.linear.weight")
    assert kernel.norm() < before["head.linear.weight"].norm()


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        # First steps on a weight of 1 with gradient 2: signs for Adam, the gradient and its momentum for Nesterov.
        (OptimizerSettings(name="adamw", lr=0.1, weight_decay=0.0), -0.1),
        (OptimizerSettings(name="adamw", lr=0.1, weight_decay=0.5), -0.1 - 0.1 * 0.5),
        (OptimizerSettings(name="sgd", lr=0.1, weight_decay=0.0), -0.1 * (2 + 0.9 * 2)),
        (OptimizerSettings(name="sgd", lr=0.1, weight_decay=0.0, momentum=0.5), -0.1 * (2 + 0.5 * 2)),
        # LAMB: the update has the norm of the weights, so each of them moves by lr.
        (OptimizerSettings(name="lamb", lr=0.1, weight_decay=0.5), -0.1),
    ],
)
def test_first_steps_by_hand(settings: OptimizerSettings, change: float) -> None:
    model = small_model("resmlp_s12")
    weight = model.get_parameter("head.linear.weight")
    nn.init.ones_(weight)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    make_optimizer(model, settings).step()
    assert torch.allclose(weight, torch.full_like(weight, 1.0 + change), atol=1e-5)


def test_lamb_leaves_clipping_to_the_caller() -> None:
    model = small_model("resmlp_s12")
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    make_optimizer(model, OptimizerSettings(name="lamb")).step()
    assert all(parameter.grad is not None and (parameter.grad == 100.0).all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
def test_a_restored_optimizer_goes_on_bit_by_bit(name: str) -> None:
    def step(model: Model, optimizer: torch.optim.Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()

    settings = OptimizerSettings(name=name, layer_decay=0.9)
    straight, resumed = small_model("cait_xxs24"), small_model("cait_xxs24")
    optimizer = make_optimizer(straight, settings)
    step(straight, optimizer, 0)
    resumed.load_state_dict(straight.state_dict())
    restored = make_optimizer(resumed, settings)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(straight, optimizer, 1)
    step(resumed, restored, 1)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adam"}, "optimizer must be one of adamw, lamb, sgd, not 'adam'"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number"),
        ({"layer_decay": 0.0}, "layer_decay must be above 0"),
        ({"name": "sgd", "betas": (0.9, 0.99)}, "sgd has no setting betas"),
        ({"momentum": 0.9}, "adamw has no setting momentum"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"eps": 0.0}, "eps must be"),
        ({"name": "sgd", "momentum": 1.0}, "momentum must be between"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerSettings(**settings)
