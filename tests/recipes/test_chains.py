"""Recipes that follow one another, and what is kept from one to the next."""

from typing import Any

import pytest

from vitrail.models.catalog import create_model
from vitrail.recipes import RECIPES, get_recipe
from vitrail.recipes.resmlp import VARIANTS
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.text import stage_of


def image_recipe(name: str) -> ImageRecipe:
    recipe = get_recipe(name)
    assert isinstance(recipe, ImageRecipe)
    return recipe


# Thesis 3.5.2 and 3.5.3: first value of LayerScale, stochastic depth, and top-1 with learnt and with fixed weights.
@pytest.mark.parametrize(
    ("depth", "layer_scale", "drop_path", "learnt", "fixed"),
    [(12, 0.1, 0.0, 80.5, 80.6), (18, 0.1, 0.05, 81.7, 81.5), (24, 1e-5, 0.1, 82.4, 81.2), (36, 1e-6, 0.2, 82.9, 81.6)],
)
def test_layer_scale_is_learnt_and_then_fixed(
    depth: int, layer_scale: float, drop_path: float, learnt: float, fixed: float
) -> None:
    name = f"deit_s{depth}_layer_scale"
    first, second = image_recipe(name), image_recipe(f"{name}_fixed")
    assert second.model.layer_scale_of == f"runs/{name}"
    assert (RECIPES[name].top1, RECIPES[f"{name}_fixed"].top1) == (learnt, fixed)
    assert first.regularisation.drop_path == second.regularisation.drop_path == drop_path
    assert (first.epochs, first.batch_size, first.lr) == (300, 1024, 1e-3)
    config: Any = create_model(first.model.name, **{**first.model.settings, "dim": 12, "num_heads": 1}).config
    assert (config.depth, config.layer_scale, config.class_position) == (depth, layer_scale, True)


# Thesis 5.3.2: 90 epochs at 224 on ImageNet-21k, ImageNet-1k at 384, then another size; 5.2.3 for each.
@pytest.mark.parametrize("name", ["patchconvnet_s60_21k_to_1k_512", "patchconvnet_l120_21k_to_1k_288"])
def test_patchconvnet_comes_from_21k_by_way_of_384(name: str) -> None:
    last = image_recipe(name)
    chain = [last]
    while chain[-1].model.init is not None:
        chain.append(image_recipe(chain[-1].model.init.removeprefix("runs/")))
    assert [(recipe.image_size, recipe.epochs) for recipe in chain[1:]] == [(384, 100), (224, 90)]
    assert (last.epochs, last.batch_size, last.lr, last.optimizer.weight_decay) == (10, 1024, 1e-5, 0.01)


def test_maps_of_each_class_are_learnt_by_fine_tuning_or_from_scratch() -> None:
    before, after = image_recipe("patchconvnet_s60"), image_recipe("patchconvnet_s60_per_class")
    assert after.model.settings == {"per_class_tokens": True}
    assert after.lr < before.lr  # "a lower learning rate and smaller batch size" (5.2.1)
    assert after.batch_size < before.batch_size
    # The authors' page; table 5.7 has what comes from scratch.
    assert (RECIPES["patchconvnet_s60_per_class"].top1, RECIPES["patchconvnet_s60_multi"].top1) == (82.0, 81.1)
    scratch = image_recipe("patchconvnet_s60_multi")
    assert scratch == before.model_copy(update={"name": scratch.name, "model": scratch.model})


def test_every_row_of_resmlps_ablation_is_a_recipe() -> None:
    for variant in VARIANTS:
        recipe = image_recipe(f"resmlp_s12_{variant}")
        assert RECIPES[recipe.name].top1 is not None
        create_model("resmlp_s12", **{**recipe.model.settings, "dim": 12, "depth": 1})


def test_resmlp_sees_21k_for_60_epochs() -> None:
    assert image_recipe("resmlp_b24_p8_21k").epochs == 60
    assert image_recipe("resmlp_b24_p8_21k_to_1k").model.init == "runs/resmlp_b24_p8_21k"


def test_grafits_best_transfer_is_at_384() -> None:  # thesis table 2.10 and section 2.5.4
    for data, epochs in (("flowers", 1000), ("cars", 1000), ("food101", 300), ("inat18", 300), ("inat19", 300)):
        recipe: Any = get_recipe(f"transfer_grafit_384_{data}")
        assert (recipe.model.name, recipe.blend.cutmix) == ("timm/regnety_080", 1.0)
        first, second = (stage_of(recipe, number) for number in (0, 1))
        assert first.epochs == epochs
        assert isinstance(second, ImageRecipe)
        assert second.image_size == 384


# Issue 108 of facebookresearch/deit.
def test_cait_m48_is_fine_tuned_as_its_authors_say() -> None:
    recipe = image_recipe("cait_m48_distilled_448")
    assert (recipe.epochs, recipe.batch_size, recipe.optimizer.weight_decay) == (60, 256, 0.05)
    assert (recipe.schedule.kind, recipe.schedule.decay_epochs, recipe.schedule.decay_rate) == ("step", 10, 0.5)
    assert recipe.regularisation.drop_path == 0.3


def test_regnets_are_trained_as_deit() -> None:
    deit, regnet = image_recipe("deit_base"), image_recipe("deit_regnety_160")
    assert regnet == deit.model_copy(update={"name": regnet.name, "model": regnet.model})
    assert (regnet.model.name, regnet.model.settings) == ("timm/regnety_160", {})
