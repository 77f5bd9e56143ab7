"""Images with several labels: mean average precision in a run's record and in `vitrail evaluate`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import run_in

from vitrail.cli import main
from vitrail.data import datasets
from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.datasets import open_source, open_split
from vitrail.data.decode import open_image
from vitrail.data.draws import Draws
from vitrail.inference.trained import load_trained
from vitrail.tasks.classify.class_answers import ClassAnswer
from vitrail.training.runs.report import write_report


def write_manifest(folder: Path) -> Path:
    """Images of colours that are there or not, with the colours as labels."""
    generator = np.random.default_rng(0)
    lines = ["path,labels,split"]
    for number in range(24):
        is_there = generator.random(3) < 0.5
        pixels = generator.integers(0, 60, (16, 16, 3)).astype(np.uint8) + 120 * is_there.astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        names = "|".join(np.array(["red", "green", "blue"])[is_there])
        lines.append(f"{number}.png,{names},{'val' if number % 3 == 0 else 'train'}")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder / "list.csv"


def test_from_a_manifest_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (f"data={write_manifest(tmp_path)}", "epochs=1", "schedule.warmup_epochs=0", "augmentation.repeats=1")
    with pytest.raises(ValueError, match="images of this data have several labels"):
        run_in(tmp_path / "refused", *words)
    run = run_in(tmp_path / "run", *words, "objective.loss=bce")
    [record] = [record for record in run.read_metrics() if record["kind"] == "eval"]
    assert 0 < record["mean_average_precision"] <= 100
    trained = load_trained(run.path)
    assert trained.is_multiple
    answer = trained.predict(tmp_path / "0.png", top=3)
    image = trained.view(open_image((tmp_path / "0.png").read_bytes()), Draws(0))
    with torch.no_grad():
        expected = trained.model(trained.normalize(image[None]))[0].sigmoid().sort(descending=True).values
    assert isinstance(answer, ClassAnswer)
    assert answer.probabilities == pytest.approx(expected.tolist(), abs=1e-4)
    assert main(["predict", str(run.path), str(tmp_path / "0.png"), "--json"]) == 0
    assert {row["class"] for row in json.loads(capsys.readouterr().out)["answers"]} == {"red", "green", "blue"}


class SeveralLabels(Dataset):
    """Another data set whose images also have the label after their own; every fifth has none."""

    def __init__(self, inner: Dataset) -> None:
        self.inner, self.name, self.split = inner, inner.name, inner.split
        level = inner.level()
        own = np.eye(len(level.classes), dtype=bool)[level.labels]
        labels = own | np.roll(own, 1, axis=1)
        labels[::5] = False
        self.levels = {"label": Level(level.classes, labels)}

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, index: int) -> bytes | np.ndarray:
        return self.inner.read(index)

    def locate(self, index: int) -> str:
        return self.inner.locate(index)


def open_several(source: Source, split: str, *, exclude: str | None = None) -> Dataset:
    return SeveralLabels(open_split(source, split, exclude=exclude))


def test_a_run_records_what_evaluate_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(datasets, "open_split", open_several)
    run = run_in(tmp_path, "objective.loss=bce", "epochs=1", "schedule.warmup_epochs=0")
    [record] = [record for record in run.read_metrics() if record["kind"] == "eval"]
    assert 0 < record["mean_average_precision"] < 100
    assert main(["evaluate", str(tmp_path), "precision=fp32", "batch_size=5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mean_average_precision"] == pytest.approx(record["mean_average_precision"], rel=1e-3)
    assert report["macro_f1"] == pytest.approx(record["macro_f1"], rel=1e-3)
    rows = list(csv.DictReader((tmp_path / "classes.csv").read_text().splitlines()))
    num_labels = open_several(open_source("shapes:size=16,count=48,val=24"), "val").level().labels.sum(axis=0)
    assert [int(row["count"]) for row in rows] == [row["count"] for row in report["classes"]] == num_labels.tolist()
    assert "Precision, recall and F1 by class" in write_report(tmp_path).read_text(encoding="utf-8")
    assert report["count"] == 24 - 5  # top-1 is of images with a label
    assert main(["evaluate", str(tmp_path)]) == 0
    assert "mean average precision" in capsys.readouterr().out
    assert main(["evaluate", "--compare", str(tmp_path), str(tmp_path / "model")]) == 2
    assert "have several labels: --compare takes data with one label each" in capsys.readouterr().err
