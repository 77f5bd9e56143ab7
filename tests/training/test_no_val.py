import json
from pathlib import Path

import pytest
from PIL import Image
from tiny_runs import run_in, tiny_recipe

from vitrail.cli import main
from vitrail.data.datasets import open_dataset
from vitrail.settings.data import DataSettings
from vitrail.settings.text import write_yaml
from vitrail.training.loop.planning import make_plan
from vitrail.training.runs.checkpoint import Checkpoints
from vitrail.training.runs.report import summarize, write_report
from vitrail.training.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures of two colours, without a val."""
    root = tmp_path_factory.mktemp("colours")
    for name, colour in (("red", (200, 20, 20)), ("blue", (20, 20, 200))):
        (root / name).mkdir()
        for number in range(20):
            Image.new("RGB", (16, 16), tuple(value + number for value in colour)).save(root / name / f"{number}.png")
    return root


def kinds_of(run: RunFolder) -> set[str]:
    return {json.loads(line)["kind"] for line in run.metrics_file.read_text().splitlines()}


@pytest.mark.parametrize("words", [(), ("task=embed",)])
def test_a_run_without_val_is_trained_on_all_and_measures_nothing(
    colours: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = run_in(tmp_path / "run", *words, f"data={colours}", "data.val=none", "augmentation.repeats=1", "epochs=2")
    assert json.loads(run.task_file.read_text())["num_train"] == 40
    assert kinds_of(run) == {"train"}
    assert Checkpoints(run.checkpoints).steps()
    assert not list(run.checkpoints.glob("best*"))
    assert (run.model / "model.safetensors").is_file()
    assert "Finished: 2 of 2 epochs are done." in summarize(run.path)
    assert write_report(run.path).is_file()


def test_a_run_that_was_not_measured_is_evaluated_on_other_data_only_and_gives_clusters(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = run_in(tmp_path / "run", f"data={colours}", "data.val=none", "augmentation.repeats=1", "epochs=1")
    assert main(["evaluate", str(run.path)]) == 2
    assert "was trained without val (data.val=none): add data=SPEC" in capsys.readouterr().err
    gallery, other = str(tmp_path / "gallery"), f"data={colours.parent / '.' / 'x' / '..' / colours.name}"
    (colours.parent / "x").mkdir()
    for words in (
        ["evaluate", str(run.path), f"data={colours}"],
        ["retrieve", str(run.path), other],
        ["gallery", "build", str(run.path), other, f"out={gallery}"],
        ["gallery", "evaluate", gallery, f"data={colours}"],
    ):
        caplog.clear()
        assert main(words) == 0
        assert "the images of this val are among its training images" in caplog.text, words
    caplog.clear()
    assert main(["gallery", "build", str(run.path), other, f"out={gallery}_all", "split=all"]) == 0
    assert "training images" not in caplog.text
    clusters = ("task=clusterfit", f"clusters.of={run.path}", "clusters.number=3")
    same = (f"data={colours}", "data.val=none", "augmentation.repeats=1", "epochs=1")
    assert kinds_of(run_in(tmp_path / "clusters", *clusters, *same)) == {"train"}


def test_early_stopping_without_val_is_refused_in_one_line(colours: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"early_stop needs evaluations, and data\.val=none has none"):
        run_in(tmp_path / "run", f"data={colours}", "data.val=none", "regularisation.early_stop=1")


@pytest.mark.usefixtures("_short_plans")
def test_a_plan_without_val_has_no_answers(colours: Path) -> None:
    [stage] = make_plan(tiny_recipe(f"data={colours}", "data.val=none", "augmentation.repeats=1", "epochs=1")).stages
    assert (stage.num_train, stage.num_val, stage.num_answers) == (40, 0, 0)


def test_images_that_are_held_out_are_told_on_the_screen(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(write_yaml(tiny_recipe("augmentation.repeats=1", "epochs=1")))
    told = {
        "own": f"{colours.name} has no val: 4 of 40 images are held out of training to evaluate on (data.val_share);",
        "none": "data.val=none: all 40 images of train are trained on, and nothing is evaluated",
    }
    for val, line in told.items():
        words = [f"data={colours}", *(["data.val=none"] if val == "none" else [])]
        assert main(["train", str(recipe), *words, f"out={tmp_path / val}"]) == 0
        assert line in " ".join(capsys.readouterr().err.split())
    assert main(["train", str(recipe), f"out={tmp_path / 'shapes'}"]) == 0
    assert "val" not in capsys.readouterr().err


def test_with_other_data_to_evaluate_on_all_of_the_training_data_is_trained_on(colours: Path) -> None:
    train, val = DataSettings(spec=str(colours), val=str(colours)).open()
    assert (len(train), len(val)) == (36, 4)
    train, val = DataSettings(spec=str(colours), val=f"{colours}/.").open()
    assert (len(train), len(val)) == (40, 40)
    assert len(open_dataset(colours, "train", val_share=0.0)) == 40
