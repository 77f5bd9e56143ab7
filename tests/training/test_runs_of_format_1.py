"""Runs and recipes of format 1, where every recipe had the keys of all tasks, still resume, evaluate and predict."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail.cli import main
from vitrail.recipes import get_recipe
from vitrail.settings.recipe import FORMAT
from vitrail.settings.text import change, read_recipe

OLD = Path(__file__).parents[1] / "data" / "runs_of_format_1"
EXPECTED: dict[str, Any] = json.loads((OLD / "expected.json").read_text())


def copy_of(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(OLD / name, folder / name))


def pattern(side: int) -> torch.Tensor:
    """What the expected answers are to."""
    return (torch.arange(3 * side * side).reshape(1, 3, side, side) % 256 - 128) / 128


# What has been put right in the recipe since, as the file has it.
@pytest.mark.parametrize(
    ("file", "name", "task", "before"),
    [
        ("deit_small", "deit_small", "classify", {"blend.group_size": None}),
        (
            "distilled",
            "deit_small_distilled",
            "distill",
            {"teacher.model": "timm/regnety_160", "blend.group_size": None},
        ),
        ("grafit", "grafit", "embed", {"data.level": None, "evaluation.crop_ratio": None}),
    ],
)
def test_recipes_are_those_of_today(file: str, name: str, task: str, before: dict[str, Any]) -> None:
    recipe = read_recipe(OLD / f"{file}.yaml")
    assert recipe == change(get_recipe(name), before)
    assert (recipe.task, recipe.format) == (task, FORMAT)


def test_a_run_goes_on_to_its_end(tmp_path: Path) -> None:
    run, expected = copy_of("unfinished", tmp_path), EXPECTED["unfinished"]
    assert main(["train", f"out={run}"]) == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == expected["steps"]
    assert records[-1]["negative_log_likelihood"] == pytest.approx(expected["negative_log_likelihood"], rel=1e-4)
    with torch.no_grad():
        logits = vitrail.load_trained(run).model(pattern(16))[0]
    assert logits.tolist() == pytest.approx(expected["logits"], abs=1e-3)


def test_a_run_that_ended_is_evaluated_and_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copy_of("finished", tmp_path)
    assert main(["evaluate", str(run), "precision=fp32", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    for name, value in EXPECTED["finished"]["evaluate"].items():
        assert figures[name] == pytest.approx(value, abs=1e-3)
    trained = vitrail.load_trained(run)
    assert trained.classes is not None
    assert trained.task == "classify"


def test_an_embedding_is_read(tmp_path: Path) -> None:
    run = copy_of("embedding", tmp_path)
    trained = vitrail.load_trained(run)
    with torch.no_grad():
        vector = trained.model(pattern(16))[0]
    assert vector.tolist() == pytest.approx(EXPECTED["embedding"]["vector"], abs=1e-4)
    assert (trained.task, trained.uses_labels) == ("embed", True)
