"""`vitrail predict`: one line an image, in order, in three forms; what can't be read does not stop the rest."""

import csv
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.data.decode import open_image
from vitrail.inference.trained import load_trained
from vitrail.training.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images, one of them deeper, and files that are none; the working folder is above them."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(('b, "big".png', "a.png", "deep/c.png")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.RandomState(seed).randint(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


PATHS = ["photos/a.png", 'photos/b, "big".png', "photos/deep/c.png"]


def test_answers_are_those_of_the_model(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run.path), "photos", "--json", "--top", "2", "--batch-size", "2"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["path"] for record in records] == PATHS
    trained = load_trained(run.path)
    for record in records:
        image = trained.view(open_image(Path(record["path"]).read_bytes()))
        with torch.inference_mode():
            probabilities = trained.model(trained.normalize(image[None])).softmax(dim=1)[0]
        values, indices = probabilities.topk(2)
        assert [answer["class"] for answer in record["answers"]] == [trained.class_names[i] for i in indices.tolist()]
        found = [answer["probability"] for answer in record["answers"]]
        assert found == pytest.approx(values.tolist(), abs=1e-3)  # bfloat16 where the machine is fast at it


def test_a_line_is_readable_and_top_is_at_most_all_classes(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run.path), "photos/a.png", "photos/deep", "--top", "100", "--workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["photos/a.png", "photos/deep/c.png"]
    answers = lines[0].split("  ")[1:]
    assert len(answers) == 24
    assert answers[0].endswith("%")


def test_csv_is_quoted(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run.path), "photos", "--csv", "--top", "2"]) == 0
    heading, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert heading == ["path", "class_1", "probability_1", "class_2", "probability_2", "error"]
    assert [row[0] for row in rows] == PATHS
    assert all(float(row[2]) >= float(row[4]) > 0 for row in rows)


def test_paths_come_from_stdin(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("photos/deep/c.png\n\nphotos/gone.png\nphotos/a.png\n"))
    assert main(["predict", str(run.path), "-"]) == 1
    captured = capsys.readouterr()
    assert [line.split("  ")[0] for line in captured.out.splitlines()] == ["photos/deep/c.png", "photos/a.png"]
    assert captured.err.count("\n") == 1
    assert "photos/gone.png" in captured.err


def test_a_broken_image_is_named_and_the_others_are_answered(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (photos / "a.png").read_bytes()
    (photos / "a.png").write_bytes(whole[: len(whole) // 2])
    assert main(["predict", str(run.path), "photos"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("vitrail: photos/a.png: ")
    assert [line.split("  ")[0] for line in captured.out.splitlines()] == PATHS[1:]


def test_what_cannot_be_read_has_a_row(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    (photos / "=cmd.png").write_bytes(b"")
    os.mkfifo(photos / "pipe.png")
    images = ["./pipe.png", "=cmd.png", "a.png"]
    assert main(["predict", str(run.path), *images, "--csv", "--top", "1"]) == 1
    heading, pipe, formula, answered = csv.reader(io.StringIO(capsys.readouterr().out))
    assert heading == ["path", "class_1", "probability_1", "error"]
    assert pipe == ["./pipe.png", "", "", "is a pipe, not a file with an image"]
    assert formula == ["'=cmd.png", "", "", "is empty"]
    assert (answered[0], answered[3]) == ("a.png", "")
    assert main(["predict", str(run.path), *images, "--json"]) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[1] == {"path": "=cmd.png", "error": "is empty"}
    assert [list(record) for record in records] == [["path", "error"], ["path", "error"], ["path", "answers"]]
    assert main(["predict", str(run.path), *images[:2], "--csv"]) == 2
    assert capsys.readouterr().out.splitlines()[:1] == ["path,error"]


def test_nothing_to_answer_is_exit_code_2(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "empty").mkdir()
    for word, message in (
        ("photos/notes.txt", "photos/notes.txt"),
        ("photos/empty", "no image found in photos/empty"),
        ("photos/gone.png", "no image or folder 'photos/gone.png'"),
    ):
        assert main(["predict", str(run.path), word]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert message in captured.err


def test_bad_options_are_one_line(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--top", "0"], ["--batch-size", "few"], ["--json", "--csv"]):
        assert main(["predict", str(run.path), "photos", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["predict", "photos", "photos/a.png"]) == 2
    assert "neither a run" in capsys.readouterr().err


@pytest.mark.parametrize("inner", ["", "found"])
def test_pictures_do_not_land_among_the_images(
    inner: str, run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run.path), str(photos), "--out", str(photos / inner)]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert not (photos / "found").exists()


def test_classes_without_names_are_numbers(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = vitrail.create_model("deit_tiny", image_size=16, patch_size=4, dim=32, num_heads=2, depth=1, num_classes=3)
    vitrail.save_model(model, tmp_path / "model")
    assert main(["predict", "model", "photos/a.png", "--json"]) == 0
    captured = capsys.readouterr()
    assert {answer["class"] for answer in json.loads(captured.out)["answers"]} == {"0", "1", "2"}
    assert "they are numbers" in captured.err


def test_a_threshold_is_for_detectors(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run.path), "photos", "--threshold", "0.3"]) == 2
    assert (
        "a threshold chooses among the objects that a detector finds: this model finds none" in capsys.readouterr().err
    )
