"""The cosine of the two tokens through the layers, against the tokens themselves."""

from typing import Any

import pytest
import torch
from shrunk import images_for, randomize, small_model
from torch import Tensor
from torch.nn import functional

import vitrail
from vitrail.evaluation.tokens import watched_tokens
from vitrail.models.contract import Model

DISTILLED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("deit_tiny_distilled", {"depth": 3}, ["block 1", "block 2", "block 3"]),
    ("deit_tiny_distilled", {"depth": 3, "class_layer": 1}, ["block 2", "block 3"]),
    ("cait_xxs24", {"distilled": True, "class_depth": 2}, ["class block 1", "class block 2"]),
    ("patchconvnet_s20", {"distilled": True}, ["class block 1"]),
]


def cosine(tokens: Tensor) -> float:
    """The mean over images of the cosine of two tokens, [batch, 2, dim]."""
    first, second = functional.normalize(tokens.double(), dim=2).unbind(dim=1)
    return (first * second).sum(dim=1).mean().item()


def measure(model: Model, *batches: Tensor) -> dict[str, float]:
    with torch.inference_mode(), watched_tokens(model) as meter:
        for images in batches:
            model(images)
    return dict(meter.results())


@pytest.mark.parametrize(("name", "settings", "places"), DISTILLED)
@torch.no_grad()
def test_every_place_is_named_and_the_ends_are_the_models_own_tokens(
    name: str, settings: dict[str, Any], places: list[str]
) -> None:
    model = randomize(small_model(name, **settings)).eval()
    images = images_for(model, batch=3)
    before = model(images)
    results = measure(model, images)
    assert list(results) == ["learned", *places, "norm"]
    owner: Any = model if hasattr(model, "tokens") else model.class_stage
    assert results["learned"] == pytest.approx(cosine(owner.tokens), abs=1e-5)
    assert results["norm"] == pytest.approx(cosine(model.features(images).summary), abs=1e-4)
    assert len(set(results.values())) == len(results)
    assert torch.equal(model(images), before)
    assert measure(vitrail.fold(model), images) == pytest.approx(results, abs=1e-4)


@torch.no_grad()
def test_in_between_they_are_what_the_blocks_give() -> None:
    model: Any = randomize(small_model("cait_xxs24", distilled=True, class_depth=2)).eval()
    images = images_for(model, batch=3)
    patches, _ = model.embed(images)
    for block in model.blocks:
        patches = block(patches)
    first, second = model.class_stage.blocks
    tokens = first(model.class_stage.tokens.expand(3, -1, -1), patches)
    results = measure(model, images)
    assert results["class block 1"] == pytest.approx(cosine(tokens), abs=1e-5)
    assert results["class block 2"] == pytest.approx(cosine(second(tokens, patches)), abs=1e-5)


def test_batches_of_any_size_give_the_mean_over_images() -> None:
    model = randomize(small_model("deit_tiny_distilled")).eval()
    images = images_for(model, batch=5)
    assert measure(model, images[:1], images[1:]) == pytest.approx(measure(model, images), abs=1e-5)


def test_equal_tokens_that_no_layer_changes_stay_equal() -> None:
    model: Any = small_model("patchconvnet_s20", distilled=True, layer_scale=0.0).eval()
    with torch.no_grad():
        model.class_stage.tokens[:, 1] = 2 * model.class_stage.tokens[:, 0]
    assert list(measure(model, images_for(model)).values()) == pytest.approx([1.0] * 3, abs=1e-4)


def test_models_without_two_tokens_are_told() -> None:
    for name, settings in (("cait_xxs24", {}), ("resmlp_s12", {"distilled": True}), ("resmlp_s12", {})):
        model = small_model(name, **settings)
        with (
            pytest.raises(ValueError, match=f"{name} has no class token and distillation token"),
            watched_tokens(model),
        ):
            pass
    with watched_tokens(small_model("deit_tiny_distilled")) as meter, pytest.raises(ValueError, match="no image"):
        dict(meter.results())
