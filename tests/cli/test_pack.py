"""`vitrail pack`, and the verbs that take packs."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import run_in

from vitrail.cli import main
from vitrail.training.runs.run_folder import RunFolder

SHAPES = "shapes:size=16,count=48,val=24"
SHORT = ("epochs=1", "regularisation.ema=null", "augmentation.repeats=1")


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "trunk", *SHORT)


@pytest.fixture(scope="module")
def task(trunk: RunFolder) -> RunFolder:
    return run_in(trunk.path.parent / "task", *SHORT, f"init={trunk.path}", "train_only=attention", "lr=1e-2")


@pytest.fixture
def pack(task: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["pack", str(task.path), f"out={tmp_path / 'pack'}"]) == 0
    capsys.readouterr()
    return tmp_path / "pack"


def output(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_it_says_what_was_stored(
    trunk: RunFolder, task: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = output(capsys, "pack", task.path, f"out={tmp_path / 'pack'}").splitlines()
    parameters = json.loads((tmp_path / "pack" / "pack.json").read_text())["parameters"]
    total = parameters["stored"] + parameters["shared"]
    share = f"{parameters['stored']:,} of {total:,} parameters ({parameters['stored'] / total:.1%})"
    assert lines[0].startswith(f"{tmp_path / 'pack'}: {share}, ")
    assert "MB; the whole model has" in lines[0]
    assert lines[1].startswith(f"trunk: {trunk.path} (sha256 ")
    assert len(lines) == 2


def test_a_pack_of_everything_names_the_cure(
    trunk: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_in(tmp_path / "run", *SHORT, f"init={trunk.path}")
    assert output(capsys, "pack", run.path).splitlines()[-1].startswith("nearly everything differs from the trunk: ")
    assert "train_only=attention" in output(capsys, "pack", run.path)


def test_a_pack_that_shares_nothing_has_no_hash(
    task: RunFolder,
    trunk: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vitrail.weights.pack.find_shared", lambda *_, **__: ())  # every weight was trained
    assert output(capsys, "pack", task.path, f"out={tmp_path / 'pack'}").splitlines()[1:] == [
        f"trunk: {trunk.path} (no weight is shared)",
        "the pack holds the whole model and needs no trunk: train_only=attention makes one of about a third",
    ]


def test_evaluate_measures_a_pack_as_its_run(task: RunFolder, pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (f"data={SHAPES}", "precision=fp32", "--json")
    assert output(capsys, "evaluate", pack, *words) == output(capsys, "evaluate", task.path, *words)
    assert "add data=" in complaint(capsys, "evaluate", pack)


def test_predict_answers_with_a_pack_as_with_its_run(
    trunk: RunFolder, task: RunFolder, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 30, 3), dtype=np.uint8)).save(photo)
    expected = output(capsys, "predict", task.path, photo, "--json")
    assert output(capsys, "predict", pack, photo, "--json") == expected
    assert output(capsys, "predict", pack, f"trunk={trunk.model}", photo, "--json") == expected
    assert "no image given" in complaint(capsys, "predict", pack, f"trunk={trunk.model}")


def test_trunks_that_are_missing_or_wrong(
    trunk: RunFolder, task: RunFolder, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"data={SHAPES}"
    other = run_in(tmp_path / "other", *SHORT, "seed=1").path
    assert "has other values: give that trunk" in complaint(capsys, "evaluate", pack, data, f"trunk={other}")
    assert "trunk=PLACE: nowhere: no such file" in complaint(capsys, "evaluate", pack, data, "trunk=nowhere")
    assert "trunk=PLACE: nowhere: no such file" in complaint(capsys, "predict", pack, ".", "trunk=nowhere")
    assert "is no pack: it has no trunk=" in complaint(capsys, "evaluate", task.path, data, f"trunk={trunk.path}")
    assert "nowhere: no such file" in complaint(capsys, "pack", task.path, "trunk=nowhere", f"out={tmp_path / 'new'}")
    assert not (tmp_path / "new").exists()
    assert "there is no trunk to share" in complaint(capsys, "pack", trunk.path)


def test_words_it_does_not_know(task: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown key 'trnk'; did you mean 'trunk'?" in complaint(capsys, "pack", task.path, "trnk=x")
    assert "write out=FOLDER or trunk=PLACE" in complaint(capsys, "pack", task.path, "here")
    assert "is there already and is no pack" in complaint(capsys, "pack", task.path, f"out={task.path}")
