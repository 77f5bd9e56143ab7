"""load_weights: names, wrappers, precision, heads, and what is said when weights do not fit."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from shrunk import images_for, randomize, small_model
from torch import Tensor

from vitrail import create_model, load_weights, to_timm
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.models.contract import Model
from vitrail.weights.misfit import SHOWN, list_names, write_numbers

FAMILIES = ["deit_tiny", "deit_tiny_distilled", "deit3_small", "vit_s18x2", "vit_b12_hmlp", "cait_xxs24", "resmlp_s12"]
FAMILIES += ["patchconvnet_s20"]


def fresh(name: str, **settings: Any) -> Any:
    return small_model(name, **settings)


def randomized(name: str, *, seed: int = 0, **settings: Any) -> Any:
    return randomize(small_model(name, **settings), seed=seed)


def copy_state(model: Model) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_weights(model: Model, state: dict[str, Tensor]) -> None:
    actual = model.state_dict()
    assert actual.keys() == state.keys()
    assert all(torch.equal(actual[name], state[name]) for name in state)


@pytest.mark.parametrize("name", FAMILIES)
def test_own_names(name: str) -> None:
    source = randomized(name)
    model = fresh(name)
    assert load_weights(model, source.state_dict()) is model
    assert_same_weights(model, source.state_dict())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"model": state},
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"state_dict_ema": state},
        lambda state: {"model_ema": state, "args": None},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"model": {f"module._orig_mod.{name}": value for name, value in state.items()}},
        lambda state: {"model": state, "model_ema": {name: value + 1 for name, value in state.items()}},
    ],
)
def test_wrappers_of_training_scripts(wrap: Callable[[dict[str, Tensor]], dict[str, Any]]) -> None:
    source = randomized("deit_tiny")
    model: Any = load_weights(fresh("deit_tiny"), wrap(to_timm(source)))
    assert_same_weights(model, source.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_take_the_precision_of_the_model(dtype: torch.dtype) -> None:
    source = randomized("vit_b12_hmlp")
    state = {
        name: value.to(dtype) if value.is_floating_point() else value for name, value in copy_state(source).items()
    }
    model: Any = load_weights(fresh("vit_b12_hmlp"), state)
    for name, value in model.state_dict().items():
        assert value.dtype == source.state_dict()[name].dtype
        assert torch.equal(value, state[name].to(value.dtype))


def test_a_half_precision_model_stays_one() -> None:
    model: Any = load_weights(fresh("deit_tiny").bfloat16(), fresh("deit_tiny").state_dict())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_the_model_shares_no_memory_with_the_source() -> None:
    source = randomized("cait_xxs24")
    with torch.device("meta"):
        on_meta = fresh("cait_xxs24")
    for model in (fresh("cait_xxs24"), on_meta):
        load_weights(model, source.state_dict())
        addresses = {value.data_ptr() for value in source.state_dict().values()}
        assert addresses.isdisjoint(value.data_ptr() for value in model.state_dict().values())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert_same_weights(model, source.state_dict())


def test_a_model_on_the_meta_device_can_not_keep_its_head() -> None:
    with torch.device("meta"):
        model = fresh("deit_tiny")
    with pytest.raises(ValueError, match="on the meta device and its head has no values"):
        load_weights(model, fresh("deit_tiny").state_dict(), reset_head=True)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_frozen_layer_scale_is_loaded_and_stays_frozen() -> None:
    source = randomized("cait_xxs24")
    model: Any = load_weights(fresh("cait_xxs24", layer_scale_frozen=True), source.state_dict())
    scale = model.blocks[0].communication.branches[0].scale.weight
    assert not scale.requires_grad
    assert torch.equal(scale, source.blocks[0].communication.branches[0].scale.weight)


def test_reset_head_keeps_the_fresh_head_and_loads_the_rest() -> None:
    source = randomized("deit_tiny_distilled")
    model = fresh("deit_tiny_distilled", num_classes=3)
    before = copy_state(model)
    load_weights(model, source.state_dict(), reset_head=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith("head.") else source.state_dict()[name])


@pytest.mark.parametrize(("have", "want"), [(7, 0), (0, 7)])
def test_reset_head_where_only_one_side_has_a_head(have: int, want: int) -> None:
    source = randomized("cait_xxs24", num_classes=have)
    model = fresh("cait_xxs24", num_classes=want)
    with pytest.raises(ValueError, match="another head: pass reset_head=True"):
        load_weights(model, source.state_dict())
    load_weights(model, source.state_dict(), reset_head=True)
    assert torch.equal(model.norm.weight, source.norm.weight)


MISFITS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    # model, settings of the weights, settings of the model, what is said
    ("deit_tiny", {}, {"num_classes": 3}, "have 7 classes and the model 3: pass reset_head=True"),
    ("deit_tiny", {}, {"in_channels": 1}, "in_channels is 3 and the model's 1: create it with in_channels=3"),
    ("deit_tiny", {"image_size": 64}, {"image_size": 32, "patch_size": 8}, "patch_size is 16 and the model's 8"),
    ("deit_tiny", {}, {"dim": 96}, "dim is 48 and the model's 96"),
    ("deit_tiny", {}, {"depth": 3}, "depth is 2 and the model's 3"),
    ("deit_tiny", {"distilled": True}, {}, "weights have a distillation token .* create it with distilled=True"),
    ("deit_tiny", {}, {"distilled": True}, "model has a distillation token .* create it with distilled=False"),
    ("deit_tiny", {"class_position": False}, {}, "positions for special tokens .* class_position=False"),
    ("deit_tiny", {}, {"class_position": False}, "positions for special tokens .* class_position=True"),
    ("deit_tiny", {"layer_scale": 0.1}, {}, "LayerScale and the model has none"),
    ("cait_xxs24", {"talking_heads": False}, {}, "talking heads .* talking_heads=False"),
]


@pytest.mark.parametrize("timm_names", [False, True], ids=["vitrail", "timm"])
@pytest.mark.parametrize(("name", "theirs", "ours", "text"), MISFITS)
def test_misfit_says_what_to_do_and_changes_nothing(
    name: str, theirs: dict[str, Any], ours: dict[str, Any], text: str, timm_names: bool
) -> None:
    source = randomized(name, **theirs)
    if timm_names and source.config.talking_heads != (name == "cait_xxs24"):
        return
    model = randomized(name, **ours, seed=1)
    before = copy_state(model)
    with pytest.raises(ValueError, match=text) as error:
        load_weights(model, to_timm(source) if timm_names else source.state_dict())
    assert str(error.value).count("\n") <= 1
    assert_same_weights(model, before)


def test_a_second_head_on_one_pooled_token_is_told_and_can_start_anew() -> None:
    plain, distilled = randomized("resmlp_s12"), randomized("resmlp_s12", distilled=True, seed=1)
    with pytest.raises(ValueError, match=r"the weights have a second head .* create it with distilled=True"):
        load_weights(fresh("resmlp_s12"), distilled.state_dict())
    with pytest.raises(ValueError, match=r"the model has a second head .* create it with distilled=False"):
        load_weights(distilled, plain.state_dict())
    before = distilled.head.distilled.weight.clone()
    load_weights(distilled, plain.state_dict(), reset_head=True)
    assert torch.equal(distilled.norm.weight, plain.norm.weight)
    assert torch.equal(distilled.head.distilled.weight, before)


def test_one_message_names_every_kind_of_misfit() -> None:
    model = randomized("deit_tiny")
    before, state = copy_state(model), copy_state(randomize(model, seed=2))
    randomize(model)
    del state["norm.bias"], state["blocks.0.feed_forward.branches.0.mix.expand.bias"]
    state["blocks.1.attention.rotary"] = torch.ones(3)
    state["norm.weight"] = torch.ones(5, 5)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared below)
        load_weights(model, state)
    text = str(error.value)
    assert "1 unexpected: blocks.1.attention.rotary" in text
    assert "2 missing: blocks.0.feed_forward.branches.0.mix.expand.bias, norm.bias" in text
    assert "1 misshapen: norm.weight [5, 5] for [48]" in text
    assert_same_weights(model, before)


def test_unexpected_names_are_given_as_the_source_has_them() -> None:
    source = randomized("deit3_small")
    state = to_timm(source)
    state["blocks.0.attn.q_norm.weight"] = torch.ones(12)
    with pytest.raises(ValueError, match=r"timm names.*1 unexpected: blocks.0.attn.q_norm.weight"):
        load_weights(fresh("deit3_small"), state)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cls_token", (48,)), ("cls_token", (2, 1, 48)), ("dist_token", (1, 1, 9)), ("pos_embed", (18, 48))],
)
def test_special_tensors_of_a_wrong_shape(name: str, shape: tuple[int, ...]) -> None:
    state = to_timm(randomized("deit_tiny_distilled"))
    state[name] = torch.ones(shape)
    with pytest.raises(ValueError, match="do not fit deit_tiny_distilled"):
        load_weights(fresh("deit_tiny_distilled"), state)


def test_two_names_for_one_parameter() -> None:
    state = to_timm(randomized("deit_tiny"))
    state["patch_embed.proj.0.weight"] = state["patch_embed.proj.weight"]
    with pytest.raises(ValueError, match=r"1 unexpected: patch_embed.proj.0.weight"):
        load_weights(fresh("deit_tiny"), state)


@pytest.mark.parametrize(
    ("of", "into", "text"),
    [
        ("cait_xxs24", "deit_tiny", "weights are of a cait and deit_tiny is a vit"),
        ("deit_tiny", "resmlp_s12", "weights are of a vit and resmlp_s12 is a resmlp"),
        ("resmlp_s12", "patchconvnet_s20", "weights are of a resmlp and patchconvnet_s20 is a patchconvnet"),
        ("patchconvnet_s20", "cait_xxs24", "weights are of a patchconvnet and cait_xxs24 is a cait"),
    ],
)
def test_weights_of_another_family(of: str, into: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        load_weights(fresh(into), fresh(of).state_dict())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({}, "holds nothing"),
        ({"model": {}}, "holds nothing"),
        ({"layer1.0.conv1.weight": torch.ones(1)}, "not those of a model of vitrail, DeiT or timm"),
        ({"norm.weight": [1.0, 2.0]}, "these entries are none: 'norm.weight'"),
        ({0: torch.ones(1)}, "these entries are none: 0"),
        (3, "not int"),
        (torch.nn.Linear(1, 1), "not Linear"),
    ],
)
def test_sources_that_are_no_weights(source: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        load_weights(fresh("deit_tiny"), source)


def test_unknown_interpolation() -> None:
    with pytest.raises(ValueError, match="bicubic, bilinear, antialiased, not 'nearest'"):
        load_weights(fresh("deit_tiny"), {}, interpolation="nearest")


def test_long_lists_are_shortened() -> None:
    assert write_numbers([4, 0, 1, 2, 7]) == "0-2,4,7"
    assert list_names([(f"blocks.{index}.norm.weight", "") for index in range(3)]) == "blocks.0-2.norm.weight"
    text = list_names([(f"part_{index}", "") for index in range(300)])
    assert text.startswith("part_0, part_1, ")
    assert text.endswith(f", part_{SHOWN - 1} and {300 - SHOWN} more")


class TestTimmBackbone:
    """Weights of a timm backbone, with its own head and with our pooling."""

    def test_timm_names(self) -> None:
        source = timm.create_model("resnet18", num_classes=5)
        model: Any = load_weights(create_model("timm/resnet18", num_classes=5), source.state_dict())
        images = torch.randn(2, 3, 64, 64)
        assert torch.equal(model.eval()(images), source.eval()(images))
        assert to_timm(model).keys() == source.state_dict().keys()

    def test_another_number_of_classes(self) -> None:
        state = timm.create_model("resnet18", num_classes=5).state_dict()
        model: Any = create_model("timm/resnet18", num_classes=3)
        fresh = model.backbone.fc.weight.clone()
        with pytest.raises(ValueError, match="5 classes and the model 3: pass reset_head=True"):
            load_weights(model, state)
        load_weights(model, state, reset_head=True)
        assert torch.equal(model.backbone.fc.weight, fresh)
        assert torch.equal(model.backbone.conv1.weight, state["conv1.weight"])

    def test_reset_head_starts_our_pooling_on_timms_trunk(self) -> None:
        state = timm.create_model("resnet18").state_dict()
        model: Any = create_model("timm/resnet18", num_classes=3, pool="attention")
        tokens = model.class_stage.tokens.clone()
        with pytest.raises(ValueError, match="another head: pass reset_head=True"):
            load_weights(model, state)
        load_weights(model, state, reset_head=True)
        assert torch.equal(model.class_stage.tokens, tokens)
        assert torch.equal(model.backbone.conv1.weight, state["conv1.weight"])
        assert model(images := torch.randn(2, 3, 64, 64)).shape == (len(images), 3)
        with pytest.raises(ValueError, match="no such attention pooling"):
            to_timm(model)


def test_logits_survive_the_way_through_timms_names() -> None:
    for name in ("deit_tiny_distilled", "deit3_small", "vit_s18x2", "cait_xxs24", "resmlp_s12"):
        source = randomized(name).eval()
        model: Any = load_weights(fresh(name).eval(), to_timm(source))
        images = images_for(source)
        assert torch.equal(model(images), source(images))


def embedding(trunk: str, *, seed: int, num_classes: int = 0, **settings: Any) -> EmbeddingModel:
    torch.manual_seed(seed)
    head = EmbeddingSettings(projector="linear", dim=4, has_predictor=False, num_classes=num_classes)
    return EmbeddingModel(create_model(trunk, num_classes=0, image_size=32, **settings), head)


def test_an_embedding_gives_another_its_attention_pooling_too() -> None:
    source = embedding("timm/test_resnet", seed=0, pool="attention")
    model = load_weights(embedding("timm/test_resnet", seed=1, pool="attention"), source.state_dict())
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_classifier_beside_a_projector_is_left_out_when_asked() -> None:
    settings = {"patch_size": 16, "dim": 16, "depth": 1, "num_heads": 2}
    source = embedding("deit_tiny", seed=0, num_classes=3, **settings)
    model = embedding("deit_tiny", seed=1, num_classes=3, **settings)
    head, projector = "head.linear.weight", "projector.weight"
    before, given = model.state_dict()[head].clone(), source.state_dict()
    load_weights(model, given, reset_head=True)
    assert torch.equal(model.state_dict()[head], before)
    assert torch.equal(model.state_dict()[projector], given[projector])
    load_weights(model, given)
    assert torch.equal(model.state_dict()[head], given[head])
