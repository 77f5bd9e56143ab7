"""attention_maps: a planted signal is found in every family, rows are distributions, answers stay the same bits."""

from typing import Any

import pytest
import torch
from planted import CLASS, CLASSES, SIZES, bright_at, peak_of, plant
from shrunk import images_for, randomize, small_model
from torch import Tensor

import vitrail
from vitrail.explain.attention_rows import attention_rows, attention_values
from vitrail.explain.maps import kinds_of
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.layers.attention import TalkingHeadsAttention
from vitrail.models.cait import CaiT
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.models.vit import VisionTransformer

PLACES = [(0, 1), (2, 3)]
WITH_TOKENS: list[tuple[str, dict[str, Any]]] = [
    ("deit_tiny", {}),
    ("deit_tiny", {"distilled": True}),
    ("deit_tiny", {"talking_heads": True}),
    ("deit_tiny", {"num_branches": 2}),
    ("deit_tiny", {"class_layer": 1}),
    ("cait_xxs24", {}),
    ("cait_xxs24", {"class_in_keys": False}),
    ("cait_xxs24", {"distilled": True}),
    ("patchconvnet_s60", {}),
    ("patchconvnet_s60", {"num_heads": 2}),
    ("patchconvnet_s60", {"distilled": True}),
    ("patchconvnet_s60", {"per_class_tokens": True}),
]
WITHOUT_TOKENS: list[tuple[str, dict[str, Any]]] = [
    ("deit_tiny", {"pool": "average"}),
    ("cait_xxs24", {"class_depth": 0}),
    ("patchconvnet_s60", {"pool": "average"}),
    ("resmlp_s12", {}),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "settings"), WITH_TOKENS)
def test_tokens_look_at_the_bright_patch(name: str, settings: dict[str, Any], size: tuple[int, int]) -> None:
    model = plant(name, size=size, **settings)
    found = vitrail.attention_maps(model, bright_at(*PLACES, size=size))
    assert found.kind == "attention"
    assert found.axes[0] == "batch"
    assert found.axes[-2:] == ("height", "width")
    assert found.maps.shape[-2:] == (size[0] // 8, size[1] // 8)
    for layer in range(len(found.layers)):
        for token in range(found.maps.shape[2]):
            for head in range(len(found.heads)):
                assert peak_of(found.maps[:, layer, token, head]) == PLACES
    peaks = found.maps[:, 0, 0, 0].flatten(1).max(dim=1).values
    torch.testing.assert_close(peaks, torch.ones(2), atol=1e-3, rtol=0)
    assert peak_of(found.overview()[:, 0]) == PLACES


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "settings"), [row for row in WITH_TOKENS if not row[0].startswith("patchconvnet")])
def test_rollout_arrives_at_the_bright_patch(name: str, settings: dict[str, Any], size: tuple[int, int]) -> None:
    model = plant(name, size=size, **settings)
    found = vitrail.attention_maps(model, bright_at(*PLACES, size=size), kind="rollout")
    assert peak_of(found.overview()[:, 0]) == PLACES


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "settings"), WITH_TOKENS + WITHOUT_TOKENS)
def test_the_gradient_of_its_class_lies_on_the_bright_patch_alone(
    name: str, settings: dict[str, Any], size: tuple[int, int]
) -> None:
    model = plant(name, size=size, **settings)
    found = vitrail.attention_maps(model, bright_at(*PLACES, size=size), kind="gradient", class_index=CLASS)
    maps = found.maps[:, 0]
    assert peak_of(maps) == PLACES
    inside = maps.flatten(1).max(dim=1).values
    assert bool((inside > 0).all())
    torch.testing.assert_close(maps.sum(dim=(1, 2)), inside)  # the dark patches add nothing
    other = vitrail.attention_maps(model, bright_at(*PLACES, size=size), kind="gradient", class_index=0)
    assert not other.maps.any()


@pytest.mark.parametrize(("name", "settings"), WITHOUT_TOKENS)
def test_without_a_class_token_the_map_is_a_gradient_that_sums_to_the_score(
    name: str, settings: dict[str, Any]
) -> None:
    model = randomize(small_model(name, image_size=(64, 96), **settings))
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    found = vitrail.attention_maps(model, images, top=3)
    assert found.kind == "gradient"
    assert found.classes is not None
    bias = next(child for child in model.head.children()).bias
    assert isinstance(bias, Tensor)
    expected = found.logits.gather(1, found.classes) - bias[found.classes]
    torch.testing.assert_close(found.maps.sum(dim=(2, 3)), expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(found.classes, found.logits.topk(3).indices)


@pytest.mark.parametrize(("name", "settings"), [WITH_TOKENS[0], WITH_TOKENS[5], WITH_TOKENS[8], *WITHOUT_TOKENS])
def test_likeness_is_the_cosine_of_the_features_of_patches(name: str, settings: dict[str, Any]) -> None:
    """With the mean of all at length 1, then with nine patches, or as many as there are."""
    model = randomize(small_model(name, image_size=(64, 96), **settings)).eval()
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    found = vitrail.attention_maps(model, images, kind="likeness")
    assert found.axes == ("batch", "patch", "height", "width")
    assert (found.tokens[0], len(found.tokens)) == ("all patches", found.maps.shape[1])
    assert len(found.tokens) > 4
    with torch.no_grad():
        patches = model.features(images).patches
    for place, token in enumerate(found.tokens[1:], start=1):
        row, column = (int(word.rpartition(" ")[2]) for word in token.split(","))
        cosines = torch.cosine_similarity(patches, patches[:, :, row, column, None, None], dim=1)
        torch.testing.assert_close(found.maps[:, place], cosines, rtol=1e-4, atol=1e-5)
    mean = (patches / patches.norm(dim=1, keepdim=True)).mean(dim=(2, 3), keepdim=True)
    expected = torch.cosine_similarity(patches, mean, dim=1)
    torch.testing.assert_close(found.overview()[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_backbone_without_tokens_and_classes_has_the_likeness_of_its_patches() -> None:
    model = small_model("deit_tiny", pool="average", num_classes=0)
    found = vitrail.attention_maps(model, images_for(model))
    assert (found.kind, found.logits.shape[1]) == ("likeness", 0)
    assert float(found.maps.abs().max()) <= 1.0 + 1e-6


def test_the_gradient_through_attention_is_that_of_the_attention_weights() -> None:
    """Its definition: for each key the attention times the derivative by it, over all heads of the last layer."""
    model = randomize(small_model("deit_tiny", image_size=64)).eval()
    assert isinstance(model, VisionTransformer)
    images = images_for(model)
    found = vitrail.attention_maps(model, images, kind="gradient", class_index=2)

    attention = model.blocks[-1].communication.branches[0].mix
    kept: list[Tensor] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(dim=-1)
        weights.retain_grad()
        kept.append(weights)
        return (weights @ value).transpose(1, 2).flatten(2)

    attention.attend = attend
    model(images)[:, 2].sum().backward()
    assert kept[0].grad is not None
    expected = (kept[0] * kept[0].grad)[:, :, 0, 1:].sum(dim=1).view(2, 4, 4)
    torch.testing.assert_close(found.maps[:, 0], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_a_resnet_with_attention_pooling_looks_where_its_query_matches(size: tuple[int, int]) -> None:
    size = (size[0] * 4, size[1] * 4)
    model = vitrail.create_model("timm/resnet18", pool="attention", num_classes=CLASSES, image_size=size).eval()
    images = torch.zeros(1, 3, *size)
    images[:, :, 64:96, 64:96] = 1.0  # the cell (2, 2) of a stride of 32
    assert isinstance(model, TimmBackbone)
    stage: Any = model.class_stage
    with torch.no_grad():
        attention = stage.blocks[0].communication.branches[0].mix
        norm = stage.blocks[0].communication.branches[0].norm
        maps = model.as_maps(model.backbone.forward_features(images), images)
        wanted = norm(maps[0, :, 2, 2])
        asking = norm(stage.tokens[0, 0])
        attention.key.weight.copy_(torch.eye(len(wanted)))
        attention.query.weight.copy_(wanted[:, None] * asking / asking.square().sum())
        expected = model(images)
    found = vitrail.attention_maps(model, images)
    assert found.maps.shape[1:] == (1, 1, 1, size[0] // 32, size[1] // 32)
    assert peak_of(found.maps[:, 0, 0, 0]) == [(2, 2)]
    assert torch.equal(found.logits, expected)


@pytest.mark.parametrize(("name", "settings"), WITH_TOKENS)
def test_rows_are_distributions_over_patches_and_special_tokens(name: str, settings: dict[str, Any]) -> None:
    model = randomize(small_model(name, image_size=(64, 96), **settings))
    images = torch.randn(2, 3, 64, 96)
    for kind in set(kinds_of(model)) & {"attention", "rollout"}:
        found = vitrail.attention_maps(model, images, kind=kind)
        assert found.rest is not None
        total = found.maps.sum(dim=(-2, -1)) + found.rest
        if kind == "attention" and settings.get("talking_heads"):
            assert not torch.allclose(total, torch.ones_like(total), atol=0.1)  # talking heads keep no sums
        else:
            torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize(("name", "settings"), [*WITH_TOKENS, *WITHOUT_TOKENS, ("resmlp_s12", {"pool": "class_mlp"})])
def test_logits_are_the_same_bits_with_and_without(name: str, settings: dict[str, Any]) -> None:
    model = randomize(small_model(name, **settings)).eval()
    with torch.inference_mode():
        images = images_for(model)
        expected = model(images)
        for kind in kinds_of(model):
            found = vitrail.attention_maps(model, images, kind=kind)
            assert torch.equal(found.logits, expected)
            assert not found.maps.requires_grad
        assert torch.equal(model(images), expected)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_of_talking_heads_are_those_the_model_uses() -> None:
    """The rows times the values must be what the layer itself makes of its input."""
    torch.manual_seed(0)
    attention = TalkingHeadsAttention(16, num_heads=4)
    tokens = torch.randn(2, 6, 16)
    rows = attention_rows(attention, tokens, None, rows=slice(0, 2))
    mixed = (rows @ attention_values(attention, tokens, None)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.proj(mixed), attention(tokens)[:, :2])


def test_rollout_by_hand() -> None:
    """Two layers; the class token looks at one patch, every patch evenly at all 13 tokens.

    After the first layer the class token holds 1/2 class + 1/2 patch, and that patch 1/2 patch + 1/2 even. The second
    makes of it 1/4 class + 1/4 patch + 1/4 patch + 1/4 even.
    """
    model = plant("deit_tiny", size=(24, 32))
    found = vitrail.attention_maps(model, bright_at((1, 2), size=(24, 32)), kind="rollout")
    expected = torch.full((1, 1, 3, 4), 0.25 / 13)
    expected[0, 0, 1, 2] += 0.5
    torch.testing.assert_close(found.maps, expected, atol=1e-5, rtol=0)
    assert found.rest is not None
    torch.testing.assert_close(found.rest, torch.tensor([[0.25 + 0.25 / 13]]), atol=1e-5, rtol=0)


def test_per_class_tokens_have_a_map_each_and_only_those_asked_for() -> None:
    model = plant("patchconvnet_s60", size=(32, 32), per_class_tokens=True)
    images = bright_at(*PLACES, size=(32, 32))
    found = vitrail.attention_maps(model, images, class_index=[CLASS, 3])
    assert found.axes == ("batch", "layer", "class", "head", "height", "width")
    assert found.maps.shape == (2, 1, 2, 1, 4, 4)
    assert peak_of(found.maps[:, 0, 0, 0]) == PLACES
    torch.testing.assert_close(found.maps[:, 0, 1, 0], torch.full((2, 4, 4), 1 / 16))  # a token that asks for nothing
    by_image = vitrail.attention_maps(model, images, class_index=torch.tensor([[3], [CLASS]]))
    assert torch.equal(by_image.maps[:, 0, 0, 0], torch.stack([found.maps[0, 0, 1, 0], found.maps[1, 0, 0, 0]]))
    first = vitrail.attention_maps(model, images, top=2)
    assert first.classes is not None
    assert first.classes[:, 0].tolist() == [CLASS, CLASS]


def test_rows_of_the_cross_patch_matrix_are_images_of_its_grid() -> None:
    model = randomize(small_model("resmlp_s12", image_size=(64, 96)))
    found = vitrail.attention_maps(model, torch.zeros(1, 3, 64, 96), kind="mixing", layer=-1)
    assert found.maps.shape == (1, 1, 24, 4, 6)
    matrix = model.blocks[1].communication.branches[0].mix.linear.weight
    assert torch.equal(found.maps[0, 0, 7], matrix[7].view(4, 6))
    assert found.layers == (1,)


def test_layers_and_heads_are_chosen_by_index() -> None:
    model = randomize(small_model("cait_xxs24"))
    images = images_for(model)
    whole = vitrail.attention_maps(model, images)
    assert whole.maps.shape[1:4] == (2, 1, 4)
    assert isinstance(model, CaiT)
    part = vitrail.attention_maps(model, images, layer=-1, head=[3, 0])
    assert part.layers == (1,)
    assert part.heads == (3, 0)
    torch.testing.assert_close(part.maps, whole.maps[:, 1:][:, :, :, [3, 0]])
    assert whole.shown_place == 0  # the first class-attention layer, as in figure D.2
    torch.testing.assert_close(whole.overview(), whole.maps[:, 0].mean(dim=(1, 2)).unsqueeze(1))


def test_a_training_model_is_explained_in_eval_mode_and_left_training() -> None:
    model = randomize(small_model("deit_tiny", distilled=True, drop_path=0.5)).train()
    images = images_for(model)
    found = vitrail.attention_maps(model, images)
    assert model.training
    assert torch.equal(found.logits, model.eval()(images))


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"layer": 2}, "layer 2 is not one of the layers 0 to 1"),
        ({}, {"layer": -3}, "layer -3 is not one of the layers 0 to 1"),
        ({"class_layer": 1}, {"layer": 0}, "layer 0 is not one of the layers 1 to 1"),
        ({}, {"head": 4}, "head 4 is not one of the heads 0 to 3"),
        ({}, {"head": "first"}, "head must be a whole number or a list of them, not 'first'"),
        ({}, {"kind": "gradient", "class_index": 7}, "class 7 is not one of the classes 0 to 6"),
        ({}, {"kind": "gradient", "class_index": -1}, "class -1 is not one of the classes 0 to 6"),
        ({}, {"kind": "gradient", "top": 8}, "top must lie between 1 and the 7 classes, not 8"),
        ({}, {"kind": "gradient", "class_index": torch.zeros(3, 1)}, "class_index has 3 rows for 2 images"),
        ({}, {"class_index": 0}, "the attention maps of this model are the same for every class"),
        ({}, {"kind": "rollout", "layer": 0}, "rollout maps go through all layers: leave layer out"),
        ({}, {"kind": "gradient", "head": 0}, "gradient maps have no heads to choose from: leave head out"),
        ({}, {"kind": "mixing"}, "deit_tiny has no mixing maps; it has: attention, rollout, gradient"),
        ({"pool": "average"}, {"kind": "rollout"}, "deit_tiny has no rollout maps; it has: gradient"),
        ({}, {"kind": "saliency"}, "one of attention, rollout, gradient, likeness, mixing, not 'saliency'"),
        ({}, {"kind": "likeness", "layer": 0}, "likeness maps are of the last features: leave layer out"),
        ({}, {"kind": "likeness", "class_index": 0}, "the likeness maps of this model are the same for every class"),
    ],
)
def test_errors_are_one_line_that_names_what_there_is(
    settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    model = small_model("deit_tiny", **settings)
    with pytest.raises(ValueError, match=message) as caught:
        vitrail.attention_maps(model, images_for(model), **options)
    assert "\n" not in str(caught.value)


def test_only_models_of_ours_that_are_not_folded_are_explained() -> None:
    model = small_model("deit_tiny")
    with pytest.raises(ValueError, match="pass the model it was folded from"):
        vitrail.attention_maps(vitrail.fold(model), images_for(model))
    with pytest.raises(ValueError, match="takes a model made by create_model or load_model, not Linear"):
        vitrail.attention_maps(torch.nn.Linear(1, 1), torch.zeros(1))  # type: ignore[arg-type]


def test_of_an_embedding_model_the_trunk_is_explained() -> None:
    trunk = small_model("cait_xxs24", num_classes=0)
    model = EmbeddingModel(trunk, EmbeddingSettings(projector="linear", dim=4, num_classes=3))
    images = images_for(trunk)
    found = vitrail.attention_maps(model, images)
    assert (found.kind, found.logits.shape) == ("attention", (len(images), 0))
    assert torch.equal(found.maps, vitrail.attention_maps(trunk, images).maps)
    assert vitrail.attention_maps(model, images, kind="rollout").logits.shape == (len(images), 0)
    with pytest.raises(ValueError, match="has no gradient maps; it has: attention, rollout"):
        vitrail.attention_maps(model, images, kind="gradient")
