"""The recipes of translation say what the thesis prints."""

from typing import Any

import pytest
import torch

from vitrail.models.figures import find_figure
from vitrail.recipes import RECIPES, get_recipe
from vitrail.settings.text import change
from vitrail.tasks import find_task
from vitrail.tasks.site import Site
from vitrail.tasks.translate.settings import TranslateRecipe
from vitrail.translation.network import Seq2Seq

NAMES = [name for name in RECIPES if get_recipe(name).task == "translate"]


@pytest.mark.parametrize("name", NAMES)
def test_the_network_and_the_schedule_can_be_built(name: str) -> None:
    recipe = get_recipe(name)
    assert isinstance(recipe, TranslateRecipe)
    task: Any = find_task("translate")(recipe, Site())
    task.check()
    with torch.device("meta"):
        model = Seq2Seq(task.make_config(recipe.text.vocabulary))
    assert len(model.decoder["blocks"]) == recipe.network.depth  # type: ignore[arg-type]
    steps = recipe.steps or 1000
    schedule = recipe.schedule.build(lr=recipe.lr, steps_per_epoch=5000, total_steps=steps).lr
    assert max(map(schedule.at, range(0, steps, 10))) == pytest.approx(recipe.lr, rel=1e-3)
    recipe.optimizer.build(Seq2Seq(task.make_config(20)) if recipe.network.dim < 512 else _small(model), lr=recipe.lr)


def _small(model: Seq2Seq) -> Seq2Seq:
    import dataclasses

    return Seq2Seq(dataclasses.replace(model.config, vocabulary_size=20, dim=16, mlp_dim=16, depth=1, max_length=8))


def test_settings_are_those_of_section_4_3_5() -> None:
    for target, dropout in (("de", 0.15), ("fr", 0.1)):
        for depth in (6, 12):
            recipe = get_recipe(f"resmlp_wmt14_en_{target}{'' if depth == 6 else '_12'}")
            assert isinstance(recipe, TranslateRecipe)
            network, optimizer = recipe.network, recipe.optimizer
            assert (network.dim, network.mlp_dim, network.depth, network.layer_scale) == (512, 2048, depth, 0.2)
            assert (network.norm, recipe.model.name) == ("affine", "seq2seq_resmlp")
            assert (optimizer.name, optimizer.lr, recipe.schedule.warmup_steps) == ("adagrad", 0.2, 32_000)
            assert (recipe.objective.smoothing, recipe.regularisation.dropout) == (0.1, dropout)
            assert recipe.evaluation.beam == 4


def test_figures_are_those_of_table_4_5() -> None:
    printed = {
        "gnmt": ("24.6", "39.9"),
        "convs2s": ("25.2", "40.5"),
        "seq2seq_transformer": ("27.3", "38.1"),
        "seq2seq_resmlp_6": ("26.4", "40.3"),
        "seq2seq_resmlp_12": ("26.8", "40.6"),
    }
    for model, digits in printed.items():
        found = [find_figure(model, f"WMT14 {pair}") for pair in ("en-de", "en-fr")]
        assert tuple(one.digits for one in found if one is not None) == digits
    assert "26.4" in RECIPES["resmlp_wmt14_en_de"].about


def test_one_setting_makes_the_twin() -> None:
    recipe = get_recipe("translate_small")
    twin = change(recipe, {"model": "seq2seq_transformer"})
    assert {key for key, value in twin.model_dump().items() if value != recipe.model_dump()[key]} == {"model"}
