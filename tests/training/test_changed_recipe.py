"""A run goes on for longer or at another learning rate; what would not be sound names the way to a new run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run_in, tiny_recipe

import vitrail
from vitrail.cli import main
from vitrail.settings.text import read_recipe
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.run_folder import RunFolder

WORDS = ("augmentation.repeats=1", "epochs=2", "schedule.warmup_epochs=0", "schedule.min_lr=0")  # of 3 steps each


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_in(tmp_path_factory.mktemp("runs") / "run", *WORDS).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def train(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    code = main(["train", *map(str, words)])
    return code, capsys.readouterr().err


def lines_of(run: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in RunFolder(run).read_metrics() if record["kind"] == kind]


def test_an_extended_run_follows_the_schedule_of_its_new_length(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "metrics.jsonl").read_text()
    code, said = train(f"out={run}", "epochs=+2", capsys=capsys)
    assert code == 0, said
    assert "from epoch 2 on: epochs 2 -> 4; the learning rate was 6.7e-05 and is 0.0005" in said
    assert read_recipe(run / "recipe.yaml").epochs == 4.0
    [change] = lines_of(run, "change")
    assert (change["step"], change["changes"]) == (6, {"epochs": [2.0, 4.0]})
    assert [line["epoch"] for line in lines_of(run, "eval")] == [1.0, 2.0, 3.0, 4.0]
    assert (run / "metrics.jsonl").read_text().startswith(before)
    newest = Checkpoints(run / "checkpoints").newest()
    assert newest is not None
    rate = load_checkpoint(newest)["optimizer"]["param_groups"][0]["lr"]
    whole = tiny_recipe(*WORDS, "epochs=4")
    assert rate == whole.schedule.build(lr=whole.lr, steps_per_epoch=3, total_steps=12).lr.at(11)
    assert "from epoch 2 on" in (run / "log.txt").read_text()
    assert "Finished" in (run / "report.html").read_text()
    vitrail.load_model(run / "model_epoch_2")
    vitrail.load_model(run / "model")


def test_the_same_extension_again_goes_on_with_it_until_it_is_done(run: Path) -> None:
    folder = RunFolder(run)
    assert folder.read_recipe_with({"epochs": "+2"}).epochs == 4.0
    folder.change(folder.read_recipe_with({"epochs": "+2"}))
    folder.go_on()
    assert not (run / "model").exists()  # until it is done
    # As after a kill: the words of before mean the same end, others a new one.
    assert RunFolder(run).read_recipe_with({"epochs": "+2"}).epochs == 4.0
    assert RunFolder(run).read_recipe_with({"epochs": "+3"}).epochs == 7.0
    assert RunFolder(run).read_recipe_with({"epochs": 9}).epochs == 9.0


def test_a_run_that_has_not_ended_takes_another_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(tiny_recipe(*WORDS))
    half = run_in(tmp_path / "half", *WORDS, "epochs=1")
    shutil.copytree(half.checkpoints, folder.checkpoints)
    shutil.copy(half.metrics_file, folder.metrics_file)
    words = ("lr=1e-2", "evaluation.every=0.5", "regularisation.early_stop=5", "schedule.kind=constant")
    code, said = train(f"out={folder.path}", *words, capsys=capsys)
    assert code == 0, said
    assert "from epoch 1 on: " in said
    assert "optimizer.lr 0.001 -> 0.01" in said
    assert {line["lr"] for line in lines_of(folder.path, "train")[-1:]} == {1e-2}
    assert read_recipe(folder.recipe_file).optimizer.lr == 1e-2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lr=1e-2",), "has done all of its 2 epochs: to go on with it, add epochs=+10 or so"),
        (("epochs=1",), "has done 2 epochs (6 steps): it cannot end before; give more, such as epochs=+10"),
        (
            ("batch_size=8",),
            "cannot go on so (batch_size was 16, now 8): give another out=, or start from its weights: ",
        ),
        (("seed=3", "epochs=9"), "vitrail train RECIPE init={run} out=NEW"),
        (("steps=+5",), "{run} counts epochs: extend it by epochs=+N, not steps=+5"),
        (("epochs=+x",), "epochs=+x is no number to be added: give how many more, such as epochs=+10"),
        (("small", "epochs=+-3"), "epochs=+-3 is no number to be added"),
        (("small", "epochs=+5"), "epochs=+5 extends a run that is there: vitrail train out=RUN epochs=+5"),
    ],
)
def test_what_is_not_sound_is_one_line_and_changes_nothing(
    run: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "recipe.yaml").read_text(), (run / "metrics.jsonl").read_text()
    names = [word for word in words if "=" not in word]
    code, lines = train(*names, f"out={run}", *(word for word in words if "=" in word), capsys=capsys)
    assert code == 2
    assert said.format(run=run) in lines
    assert lines.count("\n") == 1
    assert ((run / "recipe.yaml").read_text(), (run / "metrics.jsonl").read_text()) == before


def damage_checkpoints(run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-100])


def rename_a_weight(run: Path) -> None:
    for path in (run / "checkpoints").glob("step_*.pt"):
        state = load_checkpoint(path)
        state["model"]["other"] = state["model"].pop(next(iter(state["model"])))
        torch.save(state, path)


def damage_plan(run: Path) -> None:
    (run / "plan.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "words", "said"),
    [
        (damage_checkpoints, (), "no checkpoint in {run}/checkpoints is whole"),
        (rename_a_weight, (), "{run}/checkpoints/step_000000006.pt holds"),
        (damage_plan, (), "{run}/plan.json"),
        (lambda run: None, ("data=nowhere",), "nowhere"),
    ],
)
def test_an_extension_that_fails_leaves_the_run_as_it_was(
    run: Path, damage: Callable[[Path], None], words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run)
    kept = ("recipe.yaml", "metrics.jsonl", "task.json", "model/model.safetensors")
    before = {name: (run / name).read_bytes() for name in kept}
    code, lines = train(f"out={run}", "epochs=+1", *words, capsys=capsys)
    assert code == 2
    assert said.format(run=run) in lines
    assert lines.count("error: ") == 1
    assert {name: (run / name).read_bytes() for name in kept} == before
    assert not list(run.glob("model_epoch*"))


def test_a_recipe_by_name_changes_no_run_and_says_how(run: Path) -> None:
    with pytest.raises(ValueError, match=r"change that run by `vitrail train out=.*run epochs=5`"):
        RunFolder(run).begin(tiny_recipe(*WORDS, "epochs=5"))


def test_python_extends_a_run(run: Path) -> None:
    assert [record["epoch"] for record in vitrail.train(out=run, epochs="+1").metrics][-1] == 3.0
