"""The recipes of UperNet: settings of the papers, and models that can be built."""

import pytest
import torch

from vitrail.heads.segment import SegmentModel
from vitrail.models.catalog import create_model
from vitrail.recipes import RECIPES, find_recipe, list_recipes
from vitrail.tasks.segment.settings import SegmentRecipe


def read(name: str) -> SegmentRecipe:
    recipe = find_recipe(name)
    assert isinstance(recipe, SegmentRecipe)
    return recipe


@pytest.mark.parametrize("name", list_recipes("upernet_*"))
def test_all_of_them_have_xcits_settings(name: str) -> None:
    recipe = read(name)
    assert (recipe.steps, recipe.batch_size, recipe.optimizer.name) == (160_000, 16, "adamw")
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (6e-5, 0.01)
    assert round(recipe.schedule.warmup_epochs * 20_210 / 16) == 1500
    assert (recipe.schedule.kind, recipe.schedule.min_lr) == ("linear", 0.0)
    assert recipe.segment.pyramid == ("last" if "patchconvnet" in name else "blocks")
    small = {"upernet_deit3_tiny": 192, "upernet_deit3_small": 384}  # thesis 6.3.5.2
    assert recipe.segment.channels == small.get(name, 512)
    is_of_table_46 = "resmlp" in name or "deit_" in name
    assert recipe.image_size == recipe.evaluation.window == (224 if is_of_table_46 else 512)
    assert RECIPES[name].top1 is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upernet_resmlp_b24", 42.5),  # table 4.6
        ("upernet_deit_small", 40.5),
        ("upernet_patchconvnet_b120", 49.4),  # table 5.3
        ("upernet_patchconvnet_l120_21k", 52.2),
        ("upernet_deit3_large", 51.5),  # table 6.12
        ("upernet_deit3_base_21k", 51.8),
        ("upernet_deit3_base_21k_384", 53.4),
        ("upernet_deit3_large_21k_320", 54.6),
    ],
)
def test_published_figures_are_those_of_the_tables(name: str, value: float) -> None:
    assert RECIPES[name].top1 == value


@pytest.mark.parametrize("name", ["segment_small", "segment_small_linear"])
def test_the_small_ones_are_for_a_laptop(name: str) -> None:
    recipe = read(name)
    with torch.device("meta"):
        trunk = create_model(recipe.model.name, image_size=recipe.image_size, num_classes=0)
        model = SegmentModel(trunk, recipe.segment.build(num_classes=11))
    assert sum(parameter.numel() for parameter in model.parameters()) < 9e6
    assert (recipe.model.train_only == "head") == (name == "segment_small_linear")
