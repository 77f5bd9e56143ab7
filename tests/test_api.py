"""Training, planning, measuring and predicting from Python, as a script or a notebook would."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import SETTINGS

import vitrail
from vitrail.settings.text import parse_assignments
from vitrail.tasks.classify.class_answers import ClassAnswer
from vitrail.tasks.classify.settings import ClassifyRecipe

TINY: dict[str, Any] = {**parse_assignments(SETTINGS), "epochs": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vitrail.Run:
    return vitrail.train(ClassifyRecipe(), out=tmp_path_factory.mktemp("runs") / "first", **TINY)


def test_a_run_tells_how_it_went(run: vitrail.Run) -> None:
    assert "Finished: 1 of 1 epochs are done" in repr(run)
    assert run.metrics[-1]["kind"] == "eval"
    assert run.report.is_file()
    assert repr(run.load()) == "Trained(cait_xxs24, task classify, 24 classes, 16 px)"


def test_images_of_any_kind_get_the_same_answers(run: vitrail.Run, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    trained = run.load()
    given: list[Any] = [
        tmp_path / "one.png",
        str(tmp_path / "one.png"),
        Image.fromarray(pixels),
        pixels,
        tensor,
        tensor / 255.0,
    ]
    answers = trained.predict(given, top=3)
    assert isinstance(answers, list)
    assert len({(answer.classes, answer.probabilities) for answer in answers if isinstance(answer, ClassAnswer)}) == 1
    alone = trained.predict(tmp_path / "one.png", top=3)
    assert isinstance(alone, ClassAnswer)
    assert (alone.label, len(alone.classes)) == (alone.classes[0], 3)
    assert trained.predict([]) == []


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "not a NoneType"),
        (torch.zeros(5, 4, 4), r"a tensor \[3, height, width\], not \[5, 4, 4\]"),
        (torch.full((3, 4, 4), torch.nan), "and finite"),
        (torch.full((3, 4, 4), 300), "values of 0 ... 255"),
        (torch.full((3, 4, 4), 2.0), "values of 0 ... 1"),
        ("nowhere.png", "nowhere.png: "),
    ],
)
def test_what_is_no_image_is_one_line(run: vitrail.Run, image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run.load().predict(image)


def test_a_run_is_measured_and_typos_are_told(run: vitrail.Run) -> None:
    found = vitrail.evaluate(run.path, batch_size=8)
    assert found.figures["top1"] == pytest.approx(run.metrics[-1]["top1"])
    assert repr(found).startswith("cait_xxs24 on val of shapes")
    with pytest.raises(ValueError, match="unknown key 'batchsize'; did you mean 'batch_size'"):
        vitrail.evaluate(run.path, batchsize=8)
    assert "knn" in repr(vitrail.probe(run.path, method="knn"))
    with pytest.raises(ValueError, match="unknown key 'metod'"):
        vitrail.probe(run.path, metod="knn")


@pytest.mark.usefixtures("_short_plans")
def test_a_plan_and_a_check_print_themselves(tmp_path: Path) -> None:
    assert "steps of 16" in repr(vitrail.plan(ClassifyRecipe(), **TINY))
    found = vitrail.check("shapes:size=16,count=48,val=24", out=tmp_path / "check")
    assert "72 images, 24 classes" in repr(found)
    assert (tmp_path / "check" / "report.html").is_file()


def test_what_is_no_recipe_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a recipe is a name, a YAML file or a Recipe, not a int"):
        vitrail.train(3, out=tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"there is no run in .*run to go on with"):
        vitrail.train(out=tmp_path / "run")
    with pytest.raises(ValueError, match="did you mean small"):
        vitrail.plan("smal", data="fashion")


@pytest.mark.skipif(os.name != "posix", reason="a program of the shell stands for Python")
def test_processes_that_fail_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"  # shows the recipe that it was given, `-m vitrail train RECIPE out=RUN`, and fails
    program.write_text('#!/bin/sh\necho "$1 $2 $3 $5" >&2\ncat "$4" >&2\nexit 2\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ValueError, match="the processes of the run ended with code 2; what they said is above"):
        vitrail.train(ClassifyRecipe(), out=tmp_path / "run", **{**TINY, "data": "nowhere", "devices": 2})
    said = capfd.readouterr().err
    assert f"-m vitrail train out={tmp_path / 'run'}\n" in said
    assert "nowhere" in said


def test_pre_training_takes_recipes_without_labels_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the recipe small learns from labels: start it with vitrail.train"):
        vitrail.pretrain("small", data="shapes", out=tmp_path / "run")
    tiny = {key: value for key, value in TINY.items() if key.startswith(("model", "image_size", "batch_size", "run"))}
    small = {
        "crops.local_size": 8,
        "crops.num_local": 1,
        "dino.outputs": 16,
        "dino.hidden_dim": 8,
        "watch.pictures": None,
    }
    run = vitrail.pretrain(
        "dino_small", data="shapes:size=16,count=32,val=16", out=tmp_path / "run", epochs=1, **tiny, **small
    )
    assert run.metrics[-1]["kind"] == "eval"
    assert run.load().model.config.num_classes == 0
