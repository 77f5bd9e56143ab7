"""`vitrail inspect`: a page and its tables from a run or a model; errors of one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shrunk import small_model
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.training.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "first", "epochs=1")


def test_a_run_is_inspected_on_its_own_val(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", str(run.path), "images=6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cait_xxs24 on 6 images of val of shapes")
    assert any(line.startswith("What residual branches add: Mean ratio: self-attention ") for line in lines)
    assert any(line.startswith("Class and distillation token: not available, ") for line in lines)
    assert lines[-1] == "page: inspect-first/report.html"
    assert Path("inspect-first/report.html").is_file()
    assert Path("inspect-first/ratios.csv").read_text().startswith("layer,self-attention,feed-forward,class-attention")


def test_what_the_run_noted_while_it_trained_is_drawn(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run.metrics_file.read_text()
    for step in (1, 3):
        ratios = {"self-attention": [0.5, 0.25], "feed-forward": [0.1, 0.2]}
        run.append_metrics({"kind": "layers", "stage": 0, "step": step, "epoch": step / 3, "ratios": ratios})
    try:
        assert main(["inspect", str(run.path), "images=3", f"out={tmp_path / 'seen'}", "--json"]) == 0
    finally:
        run.metrics_file.write_text(before)
    report = json.loads(capsys.readouterr().out)
    assert report["page"] == str(tmp_path / "seen" / "report.html")
    assert report["num_images"] == 3
    tables = report["parts"]["ratios"]["tables"]
    assert [row["layer"] for row in tables["ratios"]] == ["block 1", "block 2", "class block 1", "class block 2"]
    first = {"stage": 1, "step": 1, "epoch": 1 / 3, "branch": "self-attention", "block": 1, "ratio": 0.5}
    assert tables["ratios_by_epoch"][0] == first
    assert "missing" in report["parts"]["tokens"]


def test_a_model_is_inspected_on_a_folder_whose_broken_images_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    vitrail.save_model(small_model("resmlp_s12"), tmp_path / "model")
    for name in ("cat", "dog"):
        (tmp_path / "photos" / "val" / name).mkdir(parents=True)
        for number in range(3):
            noise = np.random.RandomState(number).randint(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / "photos" / "val" / name / f"{number}.png")
    broken = tmp_path / "photos" / "val" / "cat" / "1.png"
    broken.write_bytes(b"no image")
    assert main(["inspect", "model", "data=photos", "out=seen"]) == 0
    captured = capsys.readouterr()
    assert "1.png" in captured.err
    assert captured.out.startswith("resmlp_s12 on 5 images of val of photos, 64 x 64 px")
    for path in (tmp_path / "photos" / "val").rglob("*.png"):
        path.write_bytes(b"no image")
    assert main(["inspect", "model", "data=photos", "out=seen"]) == 2
    assert "there is no image in val of photos that can be read" in capsys.readouterr().err


def test_runs_are_compared_on_one_page(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    vitrail.save_model(small_model("deit_tiny"), tmp_path / "model")
    words = ["inspect", str(run.path), "model", "data=shapes:size=16,count=48,val=24", "images=4"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "first: cait_xxs24 on 4 images of val of shapes, 16 x 16 px"
    assert lines[1] == "model: deit_tiny on 4 images of val of shapes, 64 x 64 px"
    assert any(line.startswith("LayerScale: first: Mean |λ|: ") for line in lines)
    assert lines[-1] == "page: inspect-first-model/report.html"
    assert Path("inspect-first-model/ratios.csv").read_text().startswith('layer,"self-attention, first","self-att')
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["runs"]) == ["first", "model"]
    assert report["parts"]["ratios"]["tables"]["ratios"][0]["layer"] == "block 1"


def test_wrong_words_are_errors_of_one_line(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    vitrail.save_model(small_model("deit_tiny"), tmp_path / "model")
    (tmp_path / "empty").mkdir()
    for words, message in (
        (["model"], "model is no run that has data of its own: add data=SPEC"),
        (["nowhere"], "nowhere: no such run or model"),
        (["empty"], "holds neither a run"),
        ([str(run.path), "images=0"], "images must be a whole number of at least 1, not 0"),
        ([str(run.path), "image=8"], "unknown key 'image'; did you mean 'images'?"),
        ([str(run.path), "other"], "other: no such run or model"),
        ([str(run.path), str(run.path)], "a run is named twice, "),
        (["images=8"], "which model? Give a run's folder or a model's"),
        ([str(run.path), "data=nowhere"], "nowhere"),
    ):
        assert main(["inspect", *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
