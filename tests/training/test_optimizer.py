"""Every parameter of every family in its group: decayed or not, and at which layer; and the optimizers' steps."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import timm.optim
import torch
from shrunk import NUM_CLASSES, small_model
from torch import nn

import vitrail
from vitrail.layers.classifier import PerClassClassifier
from vitrail.models.catalog import CATALOG
from vitrail.models.contract import Model
from vitrail.settings.learning import OptimizerSettings, ScheduleSettings
from vitrail.settings.own import allow_own
from vitrail.training.loop.optimizer import find_optimizer, list_optimizers
from vitrail.training.loop.schedule import set_schedules
from vitrail.training.runs.checkpoint import check_plain

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
    optimizer = OptimizerSettings(weight_decay=0.3).build(model)
    groups = names_by_group(optimizer)
    assert set(groups["decay"]) == weights_of_products(model)
    assert sorted(groups["decay"] + groups["no_decay"]) == sorted(name for name, _ in model.named_parameters())
    assert {group["name"]: group["weight_decay"] for group in optimizer.param_groups} == {"decay": 0.3, "no_decay": 0}


def test_the_groups_of_a_cait_by_name() -> None:
    groups = names_by_group(OptimizerSettings().build(build("distilled cait")))
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
        assert spared in names_by_group(OptimizerSettings().build(model))["no_decay"]


def scale_by_name(model: Model, layer_decay: float) -> dict[str, float]:
    optimizer = OptimizerSettings(lr=2.0, layer_decay=layer_decay).build(model)
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
    optimizer = OptimizerSettings(layer_decay=0.75).build(small_model("deit3_small", depth=12))
    names = [group["name"] for group in optimizer.param_groups]
    assert names[:2] == ["layer_00.decay", "layer_00.no_decay"]
    assert names[-2:] == ["layer_13.decay", "layer_13.no_decay"]
    deep = OptimizerSettings(layer_decay=0.99).build(small_model("patchconvnet_s20", depth=110))
    for scales in ([group["lr_scale"] for group in made.param_groups] for made in (optimizer, deep)):
        assert scales == sorted(scales)


def test_the_schedules_lr_reaches_every_group_by_its_scale() -> None:
    optimizer = OptimizerSettings(layer_decay=0.5).build(small_model("deit3_small"))
    set_schedules(optimizer, ScheduleSettings(kind="constant").build(lr=0.8, steps_per_epoch=1, total_steps=1), step=0)
    assert {group["name"]: group["lr"] for group in optimizer.param_groups if "no_decay" not in group["name"]} == {
        "layer_00.decay": 0.1,
        "layer_01.decay": 0.2,
        "layer_02.decay": 0.4,
        "layer_03.decay": 0.8,
    }


def test_frozen_parameters_are_left_out() -> None:
    model = small_model("cait_xxs24", layer_scale_frozen=True)
    model.get_submodule("stem").requires_grad_(False)
    optimized = {name for names in names_by_group(OptimizerSettings().build(model)).values() for name in names}
    left_out = {name for name, _ in model.named_parameters()} - optimized
    assert left_out == {
        name for name, _ in model.named_parameters() if name.startswith("stem.") or name.endswith(".scale.weight")
    }
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="every parameter of the model is frozen"):
        OptimizerSettings().build(model)


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
def test_a_step_without_gradients_shrinks_what_decays_and_moves_nothing_else(name: str) -> None:
    model = small_model("resmlp_s12")
    optimizer = OptimizerSettings(name=name, lr=0.01, weight_decay=0.1).build(model)
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
        (OptimizerSettings(name="sgd", lr=0.1, weight_decay=0.0, nesterov=False), -0.1 * 2),
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
    settings.build(model).step()
    assert torch.allclose(weight, torch.full_like(weight, 1.0 + change), atol=1e-5)


def test_lamb_leaves_clipping_to_the_caller() -> None:
    model = small_model("resmlp_s12")
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    OptimizerSettings(name="lamb").build(model).step()
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
    optimizer = settings.build(straight)
    step(straight, optimizer, 0)
    resumed.load_state_dict(straight.state_dict())
    restored = settings.build(resumed)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(straight, optimizer, 1)
    step(resumed, restored, 1)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adamv"}, "there is no optimizer of that name; did you mean adam"),
        ({"name": "quux"}, "there is no optimizer of that name; `vitrail recipes optimizers` lists them all"),
        ({"lr": float("nan")}, "finite number"),
        ({"weight_decay": -0.1}, "greater than or equal to 0"),
        ({"layer_decay": 0.0}, "greater than 0"),
        ({"name": "sgd", "betas": (0.9, 0.99)}, "sgd does not take betas; it takes momentum, nesterov"),
        ({"momentum": 0.9}, "adamw does not take momentum; it takes betas, eps"),
        ({"name": "lion", "eps": 1e-8}, "lion does not take eps; it takes betas, caution"),
        ({"betas": (0.9, 1.0)}, r"betas must be numbers in \[0, 1\)"),
        ({"betas": (0.9,)}, "adamw takes 2 betas"),
        ({"name": "adan", "betas": (0.9, 0.99)}, "adan takes 3 betas"),
        ({"eps": 0.0}, "greater than 0"),
        ({"name": "sgd", "momentum": 1.0}, "less than 1"),
        ({"name": "adamw", "nesterov": False}, "adamw does not take nesterov; it takes betas, eps"),
        ({"options": {"nonsense": 1}}, "adamw does not take nonsense; it takes amsgrad"),
        ({"name": "lion", "options": {"lr": 1}}, "lion does not take lr; it takes caution"),
        ({"name": "adahessian"}, "adahessian needs second derivatives"),
        ({"name": "fusedlamb"}, "fusedlamb needs an NVIDIA GPU and the package apex"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerSettings(**settings)


def test_a_value_that_an_optimizer_refuses_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^optimizer adafactorbv: int8 dtype not supported$"):
        OptimizerSettings(name="adafactorbv", options={"momentum_dtype": "int8"}).build(small_model("resmlp_s12"))


def learn(model: Model, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Losses of steps on two batches of noise by turns."""
    losses = []
    for step in steps:
        images = torch.randn(4, 3, *model.config.size, generator=torch.Generator().manual_seed(step % 2))
        loss = nn.functional.cross_entropy(model(images), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", list_optimizers())
def test_every_optimizer_learns_and_is_resumed_bit_by_bit(name: str) -> None:
    """Parameters of one to four axes, a step with weight decay and layer decay, and a state without code."""
    settings = OptimizerSettings(name=name, layer_decay=0.9)
    torch.manual_seed(0)
    model = small_model("cait_xxs24", dim=16, depth=1, class_depth=1).eval()
    optimizer = settings.build(model)
    losses = learn(model, optimizer, range(3))
    assert torch.tensor(losses).isfinite().all()
    state = optimizer.state_dict()
    check_plain(state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    resumed = copy.deepcopy(model)
    restored = settings.build(resumed)
    restored.load_state_dict(torch.load(file, weights_only=True))
    losses += learn(model, optimizer, range(3, 6))
    learn(resumed, restored, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert losses[4] != losses[0]
    assert min(losses[2:]) < max(losses[:2])


def test_timms_factory_and_ours_build_the_same() -> None:
    """What is left to timm is as its factory has it, but for LAMB's clipping, which is the loop's."""
    for name in ("lion", "rmsprop", "adanw", "lambc", "nmuon"):
        ours = OptimizerSettings(name=name).build(small_model("resmlp_s12"))
        timms = timm.optim.create_optimizer_v2(small_model("resmlp_s12").parameters(), name)
        expected = {**timms.defaults, "lr": 1e-3}
        if name == "lambc":
            expected["max_grad_norm"] = None
        assert {**ours.defaults, "weight_decay": timms.defaults["weight_decay"]} == expected


@pytest.mark.parametrize("name", ["torch_muon", "muon"])
def test_muon_takes_matrices_inside_the_model_and_adamw_the_rest(name: str) -> None:
    model = small_model("patchconvnet_s20")
    optimizer = OptimizerSettings(name=name, lr=0.1, weight_decay=0.0).build(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    groups = names_by_group(optimizer)
    assert all(name.startswith(("blocks.", "class_stage.blocks.")) for name in groups["decay.hidden"])
    assert {"head.linear.weight", "stem.convolutions.0.weight"} & set(groups["decay"])
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    change = {name: model.get_parameter(name).detach() - old for name, old in before.items()}
    # The first step of AdamW is the sign; a step of Muon is near to an orthogonal matrix.
    assert torch.allclose(change["head.linear.weight"].abs(), torch.tensor(0.1), atol=1e-4)
    matrix = next(change[name] for name in groups["decay.hidden"] if change[name].ndim == 2)
    values = torch.linalg.svdvals(matrix)
    assert values.max() < 2 * values.min()


def test_an_optimizer_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import torch
def make(groups, lr, nesterov=False, momentum=0.5):
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
def nothing(groups, lr):
    return groups
"""
    (tmp_path / "mine_optimizer.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    allow_own("mine_optimizer:make", "mine_optimizer:nothing")
    settings = OptimizerSettings(name="mine_optimizer:make", momentum=0.8, options={"nesterov": True}, layer_decay=0.5)
    optimizer = settings.build(small_model("deit_tiny"))
    assert isinstance(optimizer, torch.optim.SGD)
    assert [group["momentum"] for group in optimizer.param_groups] == [0.8] * len(optimizer.param_groups)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.05, 0.0}
    with pytest.raises(ValueError, match=r"mine_optimizer:make does not take betas; it takes nesterov, momentum"):
        OptimizerSettings(name="mine_optimizer:make", betas=(0.9, 0.99)).build(small_model("deit_tiny"))
    with pytest.raises(ValueError, match=r"mine_optimizer:nothing must be a torch.optim.Optimizer, not a list"):
        OptimizerSettings(name="mine_optimizer:nothing").build(small_model("deit_tiny"))
    with pytest.raises(ValueError, match=r"the optimizer mine_optimizer:other is code that a file names"):
        OptimizerSettings(name="mine_optimizer:other").build(small_model("deit_tiny"))


def test_only_what_can_run_here_is_listed() -> None:
    names = list_optimizers()
    assert {"adamw", "lamb", "sgd", "lion", "adan", "nadamw", "sgdp", "muon", "torch_muon"} <= set(names)
    assert "adahessian" not in names
    assert all(find_optimizer(name).name == name for name in names)


def test_sgd_takes_parameters_that_are_frozen_at_first() -> None:
    """As the prototypes of DINO are; without one kernel for all parameters torch's own does the same."""
    found = []
    for make in (find_optimizer("sgd").make, torch.optim.SGD):
        generator = torch.Generator().manual_seed(0)
        values = [nn.Parameter(torch.randn(3, generator=generator)) for _ in range(2)]
        optimizer = make(values, lr=0.1, momentum=0.9, nesterov=True, fused=make is not torch.optim.SGD)
        for step in range(4):
            for value in values[: 1 if step < 2 else 2]:
                value.grad = torch.randn(3, generator=generator)
            optimizer.step()
            optimizer.zero_grad()
        found.append(torch.stack([value.detach() for value in values]))
    torch.testing.assert_close(*found)
