"""Weights to start from bring their model with them."""

import json
from pathlib import Path

import pytest

import vitrail
from vitrail.recipes import find_recipe
from vitrail.settings.overriding import override
from vitrail.weights.saved_trunk import find_saved_trunk

SMALL = {"patch_size": 8, "dim": 32, "depth": 2, "num_heads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    model = vitrail.create_model("deit3_tiny", image_size=32, num_classes=0, drop_path=0.3, **SMALL)
    vitrail.save_model(model, path / "run" / "model")
    vitrail.save_model(vitrail.create_model("deit_tiny", image_size=32, depth=12, num_classes=3), path / "same")
    return path


def test_a_run_brings_its_model_where_that_of_the_recipe_does_not_fit(folder: Path) -> None:
    recipe = override(find_recipe("fine_tune"), {"init": str(folder / "run")})
    assert recipe.model.name == "deit3_tiny"
    assert recipe.model.settings == SMALL  # and not the drop path that it was trained with
    assert recipe.model.init == str(folder / "run")


def test_weights_that_fit_leave_the_model_of_the_recipe_alone(folder: Path) -> None:
    before = find_recipe("fine_tune")
    changes = {"init": str(folder / "same")}
    assert override(before, changes).model == before.model.model_copy(update=changes)


@pytest.mark.parametrize(
    "said", [{"model": "cait_xxs24"}, {"model.settings.depth": 3}, {"init": "pretrained"}, {"init": "nowhere"}]
)
def test_what_the_user_says_counts_and_other_sources_bring_nothing(folder: Path, said: dict[str, object]) -> None:
    recipe = override(find_recipe("fine_tune"), {"init": str(folder / "run"), **said})
    assert recipe.model.name == said.get("model", "deit_tiny")


def test_models_that_the_catalogue_does_not_have_bring_nothing(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "run" / "model" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "name": "mine"}))
    assert find_saved_trunk(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json"):
        find_saved_trunk(tmp_path)
