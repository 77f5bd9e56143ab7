"""Recipes of format 1, where one of the tasks' settings was switched on, become recipes of that task."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change, read_recipe, stage_of
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.distill.settings import DistillRecipe
from vitrail.tasks.embed.settings import EmbedRecipe


def read(folder: Path, content: dict[str, Any]) -> Recipe:
    (folder / "old.yaml").write_text(yaml.safe_dump(content))
    return read_recipe(folder / "old.yaml")


@pytest.mark.parametrize(
    ("content", "task"),
    [
        ({"epochs": 3}, "classify"),
        ({"teacher": {"model": None, "kind": "hard"}, "embedding": {"projector": None}}, "classify"),
        ({"teacher": {"model": "runs/x"}}, "distill"),
        ({"teacher": {"model": None, "kind": "token"}}, "distill"),
        ({"embedding": {"projector": "mlp"}, "augmentation": {"views": 2}}, "embed"),
        ({"embedding": None, "augmentation": {"views": 1}}, "classify"),
        ({"data": {"clusters": 10, "clusters_of": "runs/x"}}, "clusterfit"),
    ],
)
def test_the_task_is_what_was_switched_on(content: dict[str, Any], task: str, tmp_path: Path) -> None:
    assert read(tmp_path, content).task == task


def test_what_is_said_about_a_teacher_that_is_named_later_is_kept(tmp_path: Path) -> None:
    recipe = change(read(tmp_path, {"teacher": {"model": None, "kind": "token"}}), {"teacher": "runs/x"})
    assert isinstance(recipe, DistillRecipe)
    assert (recipe.teacher.kind, recipe.teacher.model) == ("token", "runs/x")


def test_two_views_are_the_usual_ones_and_others_are_kept(tmp_path: Path) -> None:
    for views, kept in ((2, None), (4, 4)):
        recipe = read(tmp_path, {"embedding": {"projector": "mlp"}, "augmentation": {"views": views}})
        assert isinstance(recipe, EmbedRecipe)
        assert (recipe.embedding.views, recipe.embedding.num_views) == (kept, views)


def test_stages_switch_tasks(tmp_path: Path) -> None:
    stages = [
        {"epochs": 1},
        {"teacher": "runs/x", "teacher.kind": "soft"},
        {"data.clusters": 7, "data.clusters_of": "runs/y"},
        {"embedding.projector": "linear"},
        {"teacher": None},
        {"data.clusters": None},
    ]
    recipe = read(tmp_path, {"stages": stages})
    tasks = [stage_of(recipe, number).task for number in range(len(stages))]
    assert tasks == ["classify", "distill", "clusterfit", "embed", "classify", "classify"]


def test_a_recipe_of_two_tasks_is_one_line(tmp_path: Path) -> None:
    content = {"teacher": {"model": "runs/x"}, "embedding": {"projector": "mlp"}}
    with pytest.raises(ValueError, match="asks for embed and distill: leave one out"):
        read(tmp_path, content)


def test_nothing_is_no_teacher() -> None:
    assert change(ClassifyRecipe(), {"teacher": None, "epochs": 3}).task == "classify"
