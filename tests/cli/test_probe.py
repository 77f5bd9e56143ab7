"""`vitrail probe`: the figures of every method, its cache, the model that it saves, names of models, and its errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.training.runs.run_folder import RunFolder

SHAPES = "shapes:size=16,count=192,val=48"
METHODS = ["linear", "ridge", "knn", "fc", "mlp"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of other classes."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    settings = {"image_size": 16, "patch_size": 4, "dim": 32, "num_heads": 2, "depth": 1, "num_classes": 5}
    vitrail.save_model(vitrail.create_model("deit_tiny", **settings), folder)
    return folder


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Reddish and bluish pictures: every trunk can tell them apart."""
    numbers = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for channel, name in ((0, "red"), (2, "blue")):
            (tmp_path / "colours" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = numbers.integers(0, 100, (16, 16, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(tmp_path / "colours" / split / name / f"{number}.png")
    return tmp_path / "colours"


def probe(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["probe", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["probe", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_all_methods_are_measured_on_val(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = probe(capsys, model, f"data={SHAPES}", "level=coarse")
    assert [row["method"] for row in report["probes"]] == METHODS
    assert all(0.0 <= row["top1"] <= row["top5"] <= 100.0 for row in report["probes"])
    assert (report["num_train"], report["num_val"], report["dim"], report["image_size"]) == (192, 48, 32, 16)
    assert report["num_classes"] < 24  # the coarse level, as was asked
    assert "penalty" in report["probes"][0]["setting"]


def test_the_table_names_each_method(colours: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (colours / "val" / "red" / "0.png").write_bytes(b"nothing")
    assert main(["probe", str(model), f"data={colours}"]) == 0
    captured = capsys.readouterr()
    assert "2 classes, 16 training images, 7 of val at 16 px" in captured.out
    assert "1 left out that could not be read" in captured.out
    assert "0.png" in captured.err
    assert all(f"  {method} " in captured.out for method in METHODS)


def test_the_second_time_comes_from_the_cache(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (model, f"data={SHAPES}", "method=ridge", f"cache={tmp_path}")
    first = probe(capsys, *words)
    assert len(list(tmp_path.glob("features-*.safetensors"))) == 2
    monkeypatch.setattr("vitrail.evaluation.features.predict", None)
    second = probe(capsys, *words, "batch_size=3")
    assert first["probes"][0]["top1"] == second["probes"][0]["top1"]


@pytest.mark.parametrize("method", ["linear", "ridge", "fc"])
def test_the_saved_probe_is_a_model_that_predicts_and_evaluates(
    colours: Path, model: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = probe(capsys, model, f"data={colours}", f"method={method}", f"out={tmp_path / 'out'}", "precision=fp32")
    assert report["saved"] == {"folder": str(tmp_path / "out"), "method": method}
    assert report["probes"][0]["top1"] == 100.0
    image = colours / "val" / "red" / "1.png"
    assert main(["predict", str(tmp_path / "out"), str(image), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert answers[0]["class"] == "red"
    assert answers[0]["probability"] > 0.6
    assert main(["evaluate", str(tmp_path / "out"), f"data={colours}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == 100.0


def test_a_run_is_probed_on_its_own_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: RunFolder = run_in(tmp_path / "run", "epochs=1")
    report = probe(capsys, run.path, "method=knn")
    assert (report["num_train"], report["num_val"]) == (48, 24)
    assert "choose an empty or new folder" in complaint(capsys, run.path, f"out={run.path / 'checkpoints'}")


def test_a_name_takes_weights(colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = vitrail.create_model("resmlp_s12", image_size=32)
    vitrail.save_model(weights, tmp_path / "weights")
    words = [f"data={colours}", "image_size=32", "method=ridge", "--json"]
    assert main(["probe", "resmlp_s12", f"init={tmp_path / 'weights'}", *words]) == 0
    assert json.loads(capsys.readouterr().out)["image_size"] == 32
    assert main(["probe", "timm/test_vit", "init=random", *words]) == 0


def test_help_answers_without_torch() -> None:
    program = "import sys; from vitrail.cli import main; main(['probe', '--help']); print('torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "method is all (default), linear, ridge, knn, fc or mlp" in " ".join(finished.stdout.split())
    assert finished.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=ridg"], "unknown method 'ridg'; did you mean 'ridge'?"),
        (["methods=ridge"], "did you mean 'method'?"),
        (["level=species"], "no labels 'species'"),
        (["batch_size=0"], "batch_size must be a whole number of at least 1"),
        (["init=somewhere"], "no such run or model"),
        (["method=knn", "out=somewhere"], "out= saves a linear probe"),
        (["more"], "one model is probed at a time"),
    ],
)
def test_mistakes_are_one_line(model: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in complaint(capsys, model, f"data={SHAPES}", *words)


def test_models_weights_and_data_that_are_not_there_are_one_line(
    model: Path, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no such run or model" in complaint(capsys, tmp_path / "nothing", f"data={SHAPES}")
    assert "nothing.pth" in complaint(capsys, "deit_tiny", f"init={tmp_path / 'nothing.pth'}", f"data={SHAPES}")
    assert "add data=SPEC" in complaint(capsys, model)
    assert "is the model that is probed" in complaint(capsys, model, f"data={SHAPES}", f"out={model}")
    for split in ("train", "val"):
        for path in (colours / split / "blue").iterdir():
            path.unlink()
        (colours / split / "blue").rmdir()
    assert "has 1 class: there is nothing to tell apart" in complaint(capsys, model, f"data={colours}")


def test_a_probe_of_an_embedding_run_reads_its_trunk_unless_its_embedding_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("embedding.projector=linear", "embedding.dim=8", "embedding.instance=0", "task=embed", "epochs=1")
    run = run_in(tmp_path / "run", *words)
    out = f"out={tmp_path / 'out'}"
    assert probe(capsys, run.path, "method=ridge", "features=embedding")["dim"] == 8
    error = complaint(capsys, run.path, "method=ridge", "features=embedding", out)
    assert "a probe of what a projector gives can't be saved, for it is no part of a classifier" in error
    assert "features=head: choose one of trunk, embedding" in complaint(capsys, run.path, "features=head")

    assert probe(capsys, run.path, "method=ridge", out)["dim"] == 16
    trunk, saved = vitrail.load_model(run.model).trunk, vitrail.load_model(tmp_path / "out")
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(saved.summarize(images), trunk.summarize(images))
    assert saved.trunk is saved
