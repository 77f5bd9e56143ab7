"""`vitrail train` when something goes wrong: one line on stderr, exit code 2, and a run folder that stays good."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import run_in, tiny_recipe

from vitrail.cli import main
from vitrail.settings.text import write_yaml
from vitrail.training import start
from vitrail.training.loop.stage import Stage
from vitrail.training.runs import run_folder
from vitrail.training.runs.run_folder import RunFolder

WORDS = ("steps=1", "augmentation.repeats=1")


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(write_yaml(tiny_recipe(*WORDS)))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_in(tmp_path_factory.mktemp("runs") / "run", *WORDS).path


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def train(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code and the lines on stderr."""
    code = main(["train", *map(str, words)])
    return code, capsys.readouterr().err.splitlines()


def test_a_second_train_on_a_live_run_changes_no_file(
    tmp_path: Path, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_folder, "PATIENCE", 0.1)
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        # As a run leaves it before its first checkpoint, when another recipe may still be begun in the folder.
        folder.begin(tiny_recipe(*WORDS))
        folder.append_metrics({"kind": "train", "stage": 0, "step": 1})
        before = contents(folder.path)
        code, lines = train(recipe_file, f"out={folder.path}", "lr=0.5", capsys=capsys)
        assert contents(folder.path) == before
    assert (code, lines) == (
        2,
        [f"vitrail: error: {folder.path} is in use by another process: a run of it is going on"],
    )


def test_a_folder_of_other_files_is_left_as_it_is(
    tmp_path: Path, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_bytes(b"")
    code, lines = train(recipe_file, f"out={tmp_path / 'photos'}", capsys=capsys)
    assert code == 2
    assert "has other files in it and no run" in lines[-1]
    assert list(contents(tmp_path / "photos")) == ["holiday.jpg"]


def test_a_folder_name_is_taken_as_it_is_written(
    tmp_path: Path, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = train(recipe_file, f"out={tmp_path / 'run #2'}", capsys=capsys)
    assert code == 0
    assert (tmp_path / "run #2" / "model").is_dir()
    assert not (tmp_path / "run").exists()


def test_warnings_are_shown_once_and_logged(
    tmp_path: Path, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(*_: object, **__: object) -> None:
        logging.getLogger("vitrail.training").warning("the moon is [full]")
        logging.getLogger("vitrail.training").info("as usual")

    monkeypatch.setattr(start, "train", warn)
    _, lines = train(recipe_file, f"out={tmp_path / 'run'}", capsys=capsys)
    assert lines == ["warning: the moon is [full]"]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("the moon is [full]") == log.count("as usual") == 1


def test_a_process_that_is_not_the_main_one_shows_no_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    from vitrail.training.runs.progress import Progress

    with Progress(is_shown=False).showing_warnings():
        logging.getLogger("vitrail.training").warning("the moon is full")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [KeyError("no such class"), OSError(28, "No space left on device")])
def test_a_report_that_fails_neither_ends_a_finished_run_nor_hides_an_error(
    tmp_path: Path,
    recipe_file: Path,
    finished: Path,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    run = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr(start, "write_report", fail)
    assert main(["train", str(recipe_file), f"out={run}"]) == 0
    said = capsys.readouterr()
    assert "Finished: " in said.out
    assert said.err.splitlines()[-1].startswith("warning: the report could not be written: ")
    assert "Traceback" not in said.err

    def fall(*_: object, **__: object) -> None:
        raise ValueError("the sky has fallen")

    monkeypatch.setattr(start, "train", fall)
    code, lines = train(recipe_file, f"out={run}", capsys=capsys)
    assert code == 2
    assert lines[-1] == "vitrail: error: the sky has fallen"


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            "beit_vit_b12",
            "masked.tokenizer=runs/tokenizer: there is no such run; make it first with `vitrail train tokenizer ",
        ),
        (
            "masked_small_labels",
            "init=runs/masked_small: there is no such run; make it first with `vitrail pretrain masked_small ",
        ),
        ("deit_base_384", "init=runs/deit_base: there is no such run; make it first with `vitrail train deit_base "),
    ],
)
def test_a_run_that_a_recipe_begins_with_is_named_with_its_command(
    recipe: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, lines = train(recipe, "data=shapes:size=16,count=8,val=4", "out=runs/new", capsys=capsys)
    assert (code, len(lines)) == (2, 1)
    assert said in lines[0]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "name", [".lock", "log.txt", "metrics.jsonl", "predictions.npz", "plan.json", "model/model.safetensors"]
)
def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, recipe_file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(tiny_recipe(*WORDS))
    (folder.path / name / "in the way").mkdir(parents=True)
    code, lines = train(recipe_file, f"out={folder.path}", capsys=capsys)
    assert code == 2
    assert lines[-1].startswith(f"vitrail: error: {folder.path / name} cannot be written or read (")
    assert lines[-1].endswith("make room or check the permissions, then run the same command to go on")
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl"])
def test_a_disk_that_is_full_is_one_line(
    tmp_path: Path, recipe_file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("there is no device that is always full")
    folder = RunFolder(tmp_path / "run")
    folder.begin(tiny_recipe(*WORDS))
    (folder.path / name).symlink_to("/dev/full")
    code, lines = train(recipe_file, f"out={folder.path}", capsys=capsys)
    file = folder.path / name
    assert code == 2
    assert lines[-1].startswith(f"vitrail: error: {file} cannot be written or read (No space left on device)")
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("what", ["deleted", "moved", "replaced", "half deleted"])
def test_a_folder_that_is_gone_ends_the_run_and_is_not_made_anew(
    tmp_path: Path, recipe_file: Path, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / "new" / "run", tmp_path / "elsewhere"
    step = Stage._step

    def step_and_lose(stage: Stage, batches: list[Any], *, meanwhile: Callable[[], None]) -> None:
        step(stage, batches, meanwhile=meanwhile)
        if what == "half deleted":
            (folder / "recipe.yaml").unlink()
            return
        shutil.move(folder, elsewhere)
        if what == "deleted":
            shutil.rmtree(elsewhere)
        if what == "replaced":
            RunFolder(folder).begin(tiny_recipe(*WORDS))
            with RunFolder(folder).locked():
                pass

    monkeypatch.setattr(Stage, "_step", step_and_lose)
    code, lines = train(recipe_file, f"out={folder}", capsys=capsys)
    assert code == 2
    assert lines[-1].startswith(f"vitrail: error: {folder} was moved, deleted or replaced while its run went on")
    assert "Traceback" not in "".join(lines)
    if what in ("deleted", "moved"):
        assert not folder.exists()
    else:
        assert not (folder / "checkpoints").exists()
        assert not (folder / "model").exists()


def test_what_a_kill_left_half_written_is_cleaned_up(tmp_path: Path, finished: Path, recipe_file: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "model" / ".update.123.partial").mkdir()
    (run / "model" / ".update.123.partial" / "model.safetensors").write_bytes(b"")
    for name in (".recipe.yaml.1.partial", "checkpoints/.step_000000002.pt.1.partial", "model/.config.json.1.partial"):
        (run / name).write_bytes(b"")
    assert main(["train", str(recipe_file), f"out={run}"]) == 0
    assert [path for path in run.rglob("*") if path.name.endswith(".partial")] == []


@pytest.mark.parametrize("word", ["data=shapez", "model=cait_xxs25", "workers=5000"])
def test_a_mistake_leaves_no_folder_behind(
    tmp_path: Path, recipe_file: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = train(recipe_file, word, f"out={tmp_path / 'runs' / 'first'}", capsys=capsys)
    assert code == 2
    assert len(lines) == 1
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_was_there_stays(tmp_path: Path, recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert train(recipe_file, "data=shapez", f"out={tmp_path / 'run'}", capsys=capsys)[0] == 2
    assert (tmp_path / "run").is_dir()


def test_a_file_is_no_run_folder(tmp_path: Path, recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/dev/null")):
        code, lines = train(recipe_file, f"out={out}", capsys=capsys)
        assert code == 2
        assert lines[0].startswith(f"vitrail: error: cannot make the run folder {out}: ")
        assert len(lines) == 1
