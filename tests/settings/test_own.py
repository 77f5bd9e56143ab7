"""Code of one's own by `module:name`: loaded when the user typed it, refused when a file alone names it."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import SETTINGS, run_in, tiny_recipe

import vitrail
from vitrail.cli import main
from vitrail.data.datasets import open_dataset
from vitrail.models.catalog import create_model
from vitrail.recipes import find_recipe
from vitrail.settings.own import allow_own, is_own, load_own
from vitrail.settings.running import RunSettings
from vitrail.settings.text import read_recipe, write_yaml
from vitrail.training.parallel.launch import find_place

MINE = """
from pathlib import Path

Path("imported").touch()

import numpy as np
import torch
from torch import nn

from vitrail.data.contract import Level
from vitrail.data.stored import ArrayDataset
from vitrail.models.config import ImageConfig
from vitrail.models.contract import Features, Model
from vitrail.settings.recipe import Recipe


class Little(Model):
    def __init__(self, config):
        super().__init__(config)
        self.stem = nn.Conv2d(3, config.dim, 4, 4)
        self.blocks = nn.ModuleList()
        self.head = nn.Linear(config.dim, config.num_classes)

    def forward(self, images):
        return self.head(self.summarize(images)[:, 0])

    def features(self, images, *, levels=()):
        patches = self.stem(images)
        return Features(patches.mean(dim=(2, 3))[:, None], patches, ())


def model(image_size=16, num_classes=4, dim=8):
    return Little(ImageConfig(image_size=image_size, num_classes=num_classes, dim=dim, patch_size=4, depth=1))


def familiar(**settings):
    from vitrail import create_model

    return create_model("deit_tiny", dim=12, depth=1, num_heads=2, patch_size=4, **settings)


def no_model(**settings):
    return 3


def data():
    labels = Level(classes=("a", "b"), labels=np.array([0, 1] * 8))
    images = np.arange(16 * 16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 16, 3)
    made = {"name": "mine", "images": images, "levels": {"class": labels}}
    return [ArrayDataset(split=split, **made) for split in ("train", "val")]


def loss(logits, targets):
    return (logits.softmax(-1) - nn.functional.one_hot(targets, logits.shape[1])).square().mean()


def optimizer(groups, lr):
    return torch.optim.SGD(groups, lr=lr)


def recipe():
    return Recipe(name="mine", epochs=7)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of the user's, which leaves a mark when it is imported; nothing is allowed."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitrail.settings.own._allowed", set())
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine:make", True),
        ("a.b:c", True),
        ("imagenet:/data", False),
        ("hf://a/b", False),
        ("C:\\x", False),
        ("a", False),
    ],
)
def test_the_form_of_a_name(text: str, expected: bool) -> None:
    assert is_own(text) is expected


def test_nothing_is_imported_that_the_user_did_not_type(here: Path) -> None:
    said = (
        r"^the loss mine:loss is code that a file names, and nothing of it was run: it would import "
        rf"{re.escape(str(here / 'mine.py'))} and call loss; if you trust it, add --trust or name mine:loss"
    )
    with pytest.raises(ValueError, match=said):
        load_own("mine:loss", what="loss")
    assert not (here / "imported").exists()
    allow_own("out=run", "objective.loss=mine:loss")
    assert load_own("mine:loss", what="loss").__name__ == "loss"
    with pytest.raises(ValueError, match="the model mine:model is code that a file names"):
        load_own("mine:model", what="model")


def test_the_environment_may_allow(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_OWN", "other:thing,mine:recipe")
    assert find_recipe("mine:recipe").epochs == 7


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("model=mine:model",), "model mine:model"),
        (("data=mine:data",), "data mine:data"),
        (("objective.loss=mine:loss", "blend.mixup=0", "blend.cutmix=0"), "loss mine:loss"),
        (("optimizer.name=mine:optimizer",), "optimizer mine:optimizer"),
        (("teacher=mine:recipe",), "teacher mine:recipe"),
    ],
)
def test_a_recipe_file_brings_no_code(
    here: Path, words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = here / "downloaded.yaml"
    path.write_text(write_yaml(tiny_recipe("model.settings={}", "model=deit_tiny", *words)), encoding="utf-8")
    assert read_recipe(path)  # reading and showing it is harmless
    (here / "run").mkdir()
    (here / "run" / "recipe.yaml").write_bytes(path.read_bytes())
    for command in (["train", str(path), "out=new"], ["plan", str(path)], ["train", "out=run"]):
        assert main(command) == 2
        assert f"the {what} is code that a file names" in capsys.readouterr().err
    assert not (here / "imported").exists()


def test_trust_is_for_one_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "r.yaml").write_text("task: mine:Nothing\n", encoding="utf-8")
    assert main(["recipes", "show", "r.yaml"]) == 2
    assert not (here / "imported").exists()
    assert main(["recipes", "show", "--trust", "r.yaml"]) == 2
    assert "the task mine:Nothing: mine has no function Nothing" in capsys.readouterr().err
    assert (here / "imported").exists()
    assert main(["recipes", "show", "r.yaml"]) == 2
    assert "the task mine:Nothing is code that a file names" in capsys.readouterr().err


def test_processes_that_are_started_import_nothing_of_the_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = find_place(RunSettings(devices=2), {})
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(here))])
    assert place.environment(0)["PYTHONSAFEPATH"] == "1"
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert "PYTHONSAFEPATH" not in place.environment(0).keys() - os.environ.keys()


def test_a_run_of_all_that_is_ones_own(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allow_own("mine:data", "mine:model", "mine:loss", "mine:optimizer")
    mine = ("data=mine:data", "model=mine:model", "model.settings={dim: 4}", "objective.loss=mine:loss")
    words = ("optimizer.name=mine:optimizer", "regularisation.drop_path=null", "blend.mixup=0", "blend.cutmix=0")
    folder = run_in(here / "run", *mine, *words, "epochs=1")
    model = vitrail.load_model(folder.model)
    assert type(model).__name__ == "Little"
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 2)
    monkeypatch.setattr("vitrail.settings.own._allowed", set())
    monkeypatch.delitem(sys.modules, "mine")
    command = ["evaluate", str(folder.path), "data=mine:data"]
    assert main(command) == 2
    assert "the model mine:model is code that a file names" in capsys.readouterr().err
    monkeypatch.setenv("VITRAIL_OWN", "mine:model")
    assert main(command) == 0


def test_a_model_of_ours_that_was_made_by_ones_own_function_travels_without_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_own("mine:familiar")
    vitrail.save_model(create_model("mine:familiar", image_size=16, num_classes=3), here / "saved")
    monkeypatch.setattr("vitrail.settings.own._allowed", set())
    assert vitrail.load_model(here / "saved").describe()["settings"]["dim"] == 12


def test_wrong_things_are_one_line(here: Path) -> None:
    for name in ("no_model", "model", "data", "recipe", "loss"):
        allow_own(f"mine:{name}")
    allow_own("imagenat:data")
    with pytest.raises(
        ValueError, match=r"^the model mine:no_model must be a vitrail\.models\.contract\.Model, not a int$"
    ):
        create_model("mine:no_model")
    with pytest.raises(ValueError, match=r"^the model mine:model: got an unexpected keyword argument 'depth'$"):
        create_model("mine:model", depth=3)
    with pytest.raises(ValueError, match=r"^the data mine:recipe must be a Source or a list of Datasets, not Recipe$"):
        open_dataset("mine:recipe")
    with pytest.raises(ValueError, match=r"^the recipe mine:data must return a Recipe, not a list$"):
        find_recipe("mine:data")
    with pytest.raises(ValueError, match=r"there is no module imagenat .* \(is 'imagenet' meant\?\)$"):
        open_dataset("imagenat:data")


def test_the_command_line_trains_a_recipe_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in SETTINGS if not word.startswith(("epochs", "data="))]
    assert main(["train", "mine:recipe", "out=run", "epochs=1", "data=shapes:size=16,count=32,val=24", *words]) == 0
    assert read_recipe(here / "run" / "recipe.yaml").name == "mine"
