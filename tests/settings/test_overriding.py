"""What a user says on top of a recipe: settings of the model stay with the model they were written for."""

import logging
from pathlib import Path
from typing import Any

import pytest

import vitrail
from vitrail.api import make_recipe
from vitrail.cli import main
from vitrail.recipes import find_recipe, get_recipe
from vitrail.settings.overriding import override
from vitrail.settings.text import change, stage_of

SAID = "deit_base is trained without what transfer_cars says of cait_s36: layer_scale=1e-06, drop_path_schedule=uniform"


def test_another_model_does_not_get_the_settings_of_the_recipes(caplog: pytest.LogCaptureFixture) -> None:
    changed = override(get_recipe("transfer_cars"), {"model": "deit_base", "init": "runs/deit_base"})
    assert changed.model.settings == {}
    assert caplog.messages == [SAID]
    assert changed.regularisation.drop_path is None
    # Without them the model is the catalogue's: linear stochastic depth, no LayerScale.
    config: Any = vitrail.create_model("deit_base", depth=1, dim=12, num_heads=1, **changed.model.settings).config
    assert (config.drop_path_schedule, config.layer_scale, config.drop_path) == ("linear", None, 0.1)


@pytest.mark.parametrize(
    ("typed", "settings", "num_lines"),
    [
        ({"model.settings.layer_scale": 0.1}, {"layer_scale": 0.1}, 1),
        ({"model.settings": {"depth": 3}}, {"depth": 3}, 0),
        ({"model.name": "cait_s36"}, {"layer_scale": 1e-6, "drop_path_schedule": "uniform"}, 0),
    ],
)
def test_settings_that_were_typed_are_kept(
    typed: dict[str, object], settings: dict[str, object], num_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    changed = override(get_recipe("transfer_cars"), {"model.name": "deit_base", "init": None, **typed})
    assert changed.model.settings == settings
    assert len(caplog.messages) == num_lines


def test_weights_of_another_model_are_not_taken_for_granted() -> None:
    said = r"^transfer_cars starts from runs/cait_s36, weights of cait_s36: give those of deit_base with init=WEIGHTS"
    with pytest.raises(ValueError, match=said):
        override(get_recipe("transfer_cars"), {"model": "deit_base"})


def test_stages_lose_them_too(caplog: pytest.LogCaptureFixture) -> None:
    stages = [{"model.settings.depth": 6, "epochs": 1}, {"model.settings": {"layer_scale": 0.5}}]
    recipe = change(get_recipe("small"), {"stages": stages})
    changed = override(recipe, {"model": "deit_tiny"})
    assert [stage_of(changed, number).model.settings for number in (0, 1)] == [{}, {}]
    assert changed.stages == ({"epochs": 1}, {})
    assert "layer_scale=0.5" in caplog.messages[0]


def test_a_file_python_and_the_command_line_do_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "my.yaml"
    assert main(["recipes", "cp", "transfer_cars", str(file)]) == 0
    for recipe in ("transfer_cars", file, get_recipe("transfer_cars")):
        assert make_recipe(recipe, model="timm/regnety_040", init=None).model.settings == {}
    capsys.readouterr()
    caplog.clear()
    words = ["model=timm/regnety_040", "init=null", f"data={tmp_path / 'none'}"]
    for verb in (["train", str(file), f"out={tmp_path / 'run'}"], ["plan", str(file)]):
        assert main([*verb, *words]) == 2
        assert "drop_path_schedule" not in capsys.readouterr().err
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_published_weights_follow_the_model() -> None:
    recipe = override(find_recipe("fine_tune"), {"model": "deit_small"})
    assert (recipe.model.name, recipe.model.init) == ("deit_small", "pretrained")
    assert override(find_recipe("fine_tune"), {"init": None}).model.init is None
