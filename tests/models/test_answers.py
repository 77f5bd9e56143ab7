"""What models say of themselves: their trunk, their grid, another size of themselves, what is saved of them."""

from typing import Any

import pytest
import timm
import torch
from shrunk import NUM_CLASSES, images_for, randomize, small_model

import vitrail
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.models.build import FAMILIES
from vitrail.models.contract import Model
from vitrail.models.resizing import grid_tensors

FAMILY_MODELS = {
    "vit": ("deit_tiny", {}),
    "cait": ("cait_xxs24", {}),
    "resmlp": ("resmlp_s12", {"pool": "class_mlp"}),
    "patchconvnet": ("patchconvnet_s20", {}),
}


def family_model(family: str, **settings: Any) -> Model:
    name, own = FAMILY_MODELS[family]
    return randomize(small_model(name, **own, **settings)).eval()


def embedding(trunk: Model, **settings: Any) -> EmbeddingModel:
    model = EmbeddingModel(trunk, EmbeddingSettings(dim=8, hidden_dim=16, **settings))
    randomize(model)
    return model.eval()


def test_the_families_are_those_of_the_table() -> None:
    assert set(FAMILIES) == set(FAMILY_MODELS)
    for family in FAMILIES:
        model = family_model(family)
        assert model.family == family
        assert model.trunk is model
        assert model.for_inference() is model


@pytest.mark.parametrize("family", FAMILY_MODELS)
def test_a_model_of_another_size_is_what_loading_its_weights_gives(family: str) -> None:
    model = family_model(family)
    side = model.config.size[0]
    sizes = (side + 32, side)
    resized = model.resized(sizes)
    loaded = vitrail.load_weights(family_model(family, image_size=sizes), model.state_dict())
    assert {name: value.tolist() for name, value in resized.state_dict().items()} == {
        name: value.tolist() for name, value in loaded.state_dict().items()
    }
    assert (resized.image_size, resized.name, resized.preprocessing) == (sizes, model.name, model.preprocessing)
    assert resized(images_for(resized)).shape == (2, NUM_CLASSES)
    assert model.resized(side) is model.resized((side, side)) is model


def test_the_tensors_of_a_grid_are_told_by_their_layers() -> None:
    assert set(grid_tensors(family_model("vit"))) == {"positions.patches"}
    assert set(grid_tensors(family_model("patchconvnet"))) == set()
    of_resmlp = {f"blocks.{block}.communication.branches.0.mix.linear" for block in (0, 1)}
    assert set(grid_tensors(family_model("resmlp"))) == {
        *(f"{name}.{part}" for name in of_resmlp for part in ("weight", "bias")),
        *(f"class_stage.blocks.{block}.communication.branches.0.mix.linear.weight" for block in (0, 1)),
    }


def test_what_cannot_be_resized_says_so() -> None:
    with pytest.raises(ValueError, match="an MLP across patches can't change its resolution"):
        small_model("resmlp_s12", communication="mlp").resized(96)
    with pytest.raises(ValueError, match="a folded model can't change its image size"):
        vitrail.fold(family_model("vit")).resized(96)


@pytest.mark.parametrize("settings", [{}, {"pool": "attention"}])
def test_a_timm_model_is_resized_as_timm_does_it(settings: dict[str, str]) -> None:
    name = "vit_tiny_patch16_224"
    model = vitrail.create_model(f"timm/{name}", image_size=64, num_classes=3, **settings).eval()
    resized = model.resized((96, 64))
    theirs = timm.create_model(name, img_size=(96, 64), num_classes=3)
    backbone: Any = model.backbone
    theirs.load_state_dict(
        timm.models.vision_transformer.checkpoint_filter_fn(backbone.state_dict(), theirs), strict=False
    )
    state = resized.state_dict()
    assert torch.equal(state["backbone.pos_embed"], theirs.pos_embed)
    assert torch.equal(state["backbone.blocks.3.attn.qkv.weight"], backbone.blocks[3].attn.qkv.weight)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items() if "backbone" not in key)
    assert resized(torch.zeros(1, 3, 96, 64)).shape == (1, 3)


def test_an_embedding_model_answers_with_its_trunk() -> None:
    trunk = family_model("cait", num_classes=0)
    model = embedding(trunk, num_classes=NUM_CLASSES)
    assert model.trunk is trunk is model.trunk.trunk
    assert model.grid == trunk.grid == (4, 4)
    assert next(name for name, _ in model.named_children()) == "trunk"
    on_trunk = {name for name, _ in model.named_parameters() if not name.startswith("trunk.")}
    parts = model.parts()
    assert parts["head"] == on_trunk
    assert parts["positions"] == {"trunk.positions.patches"}
    assert on_trunk | {"trunk.class_stage.tokens"} <= model.from_block(1)
    assert not {"trunk.positions.patches"} & model.from_block(0)


def test_an_embedding_model_of_another_size_keeps_its_heads() -> None:
    model = embedding(family_model("vit", num_classes=0), num_classes=NUM_CLASSES)
    resized = model.resized(96)
    own, other = model.state_dict(), resized.state_dict()
    assert own.keys() == other.keys()
    assert {name for name in own if own[name].shape != other[name].shape} == {"trunk.positions.patches"}
    assert all(torch.equal(own[name], other[name]) for name in own if "positions" not in name)
    assert not resized.training
    assert model.resized(64) is model


def test_all_of_an_embedding_model_is_counted() -> None:
    trunk = family_model("vit", num_classes=0)
    of_trunk = vitrail.complexity(trunk).multiply_adds
    for num_classes in (0, NUM_CLASSES):
        model = embedding(trunk, num_classes=num_classes, projector="linear")
        assert vitrail.complexity(model).multiply_adds == of_trunk + 48 * 8 + 48 * num_classes
