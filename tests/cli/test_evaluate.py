"""`vitrail evaluate`: the run's own figures again, data of other orders, broken files, sweeps, and its errors."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from shrunk import randomize
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.data.datasets import open_dataset
from vitrail.training.runs.run_folder import RunFolder

SHAPES = "shapes:size=16,count=48,val=24"
FIGURES = (
    *("top1", "top5", "coarse_top1", "coarse_summed_top1", "class_mean_top1", "macro_precision", "macro_f1"),
    *("calibration_error", "negative_log_likelihood"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's val as files: the same pictures, the same classes in the order of their names."""
    data, root = open_dataset(SHAPES, "val"), tmp_path_factory.mktemp("pictures")
    level = data.level()
    for index, label in enumerate(level.labels.tolist()):
        for split in ("train", "val"):
            path = root / split / level.classes[label] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(data.read(index))).save(path)
    return root


def save_student(folder: Path, name: str, *, seed: int, order: list[int] | None = None, **settings: Any) -> Path:
    """A model of random weights with the classes of the shapes, in their order or another."""
    sizes = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "num_classes": 24}
    model = randomize(vitrail.create_model(name, **sizes, **settings), seed=seed)
    classes = open_dataset(SHAPES, "val").level().classes
    if order is not None:
        for part in model.head.modules():
            if isinstance(part, torch.nn.Linear):
                part.weight.data, part.bias.data = part.weight.data[order], part.bias.data[order]
        classes = tuple(classes[place] for place in order)
    vitrail.save_model(model, folder)
    (folder / "classes.json").write_text(json.dumps({"classes": classes, "coarse": None}))
    return folder


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("students") / "student"
    return save_student(folder, "deit_tiny_distilled", seed=1, num_heads=2)


def evaluate(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["evaluate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["evaluate", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_run_is_measured_on_its_own_val_as_in_training(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    last = [record for record in run.read_metrics() if record["kind"] == "eval"][-1]
    report = evaluate(capsys, run.path, "precision=fp32", "batch_size=5")
    assert {name: report[name] for name in FIGURES} == pytest.approx({name: last[name] for name in FIGURES}, rel=1e-4)
    assert (report["count"], report["num_left_out"]) == (24, 0)
    assert sum(row["count"] for row in report["classes"]) == 24
    right = sum(row["count"] * row["top1"] / 100 for row in report["classes"])
    assert right + sum(pair["count"] for pair in report["confusions"]) == pytest.approx(24)


def test_every_class_has_its_counts_and_scores(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluate(capsys, run.path, "precision=fp32")
    answers = np.load(run.path / "predictions.npz")
    for label, row in enumerate(report["classes"]):
        is_right = (answers["targets"] == label) & (answers["predicted"] == label)
        assert row["num_right"] == is_right.sum()
        assert (row["count"], row["num_answers"]) == tuple(
            (answers[key] == label).sum() for key in ("targets", "predicted")
        )
        assert row["f1"] == pytest.approx(200 * is_right.sum() / (row["count"] + row["num_answers"]))
    assert np.mean([row["f1"] for row in report["classes"]]) == pytest.approx(report["macro_f1"])
    assert main(["evaluate", str(run.path), "precision=fp32", "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [{key: str(value) for key, value in row.items() if key != "top1"} for row in report["classes"]] == rows
    assert (run.path / "classes.csv").read_text().splitlines()[0] == ",".join(rows[0])
    assert main(["evaluate", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert f"macro F1{report['macro_f1']:24.2f} %" in shown
    assert "precision   recall       F1   images" in shown
    assert "--csv is for one model" in complaint(capsys, "--compare", run.path, run.path, "--csv")


def test_classes_in_another_order_are_matched_by_name(
    run: RunFolder, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = evaluate(capsys, run.path, "precision=fp32")
    other = evaluate(capsys, run.path, f"data={pictures}", "precision=fp32")
    assert {name: other[name] for name in FIGURES} == pytest.approx({name: own[name] for name in FIGURES}, rel=1e-5)
    assert other["classes"] == own["classes"]


def test_data_may_have_fewer_classes_and_unknown_ones_are_named(
    run: RunFolder, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ("plain circle", "dotted star")
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        for name in kept:
            (tmp_path / split / name).symlink_to(pictures / split / name)
    report = evaluate(capsys, run.path, f"data={tmp_path}")
    assert report["count"] == 2
    assert {row["class"] for row in report["classes"] if row["top1"] is not None} == set(kept)
    (tmp_path / "val" / "cat").symlink_to(pictures / "val" / kept[0])
    assert "does not know 1 of the 3 classes" in (error := complaint(capsys, run.path, f"data={tmp_path}"))
    assert "'cat'" in error


def test_broken_files_are_left_out_and_counted(
    run: RunFolder, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("plain circle", "dotted star"):
        (tmp_path / "val" / name).mkdir(parents=True)
        source = next((pictures / "val" / name).iterdir())
        (tmp_path / "val" / name / "good.png").write_bytes(source.read_bytes())
    (tmp_path / "val" / "dotted star" / "bad.png").write_bytes(b"nothing")
    assert main(["evaluate", str(run.path), f"data={tmp_path}"]) == 0
    captured = capsys.readouterr()
    assert "2 images" in captured.out
    assert "1 image left out that could not be read" in captured.out
    assert "bad.png" in captured.err


def test_a_sweep_has_a_row_for_every_size_and_ratio(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluate(capsys, run.path, "--sizes", "16,24", "--crop-ratios", "0.5,1.0")
    rows = {(row["image_size"], row["crop_ratio"]): row["negative_log_likelihood"] for row in report["sweep"]}
    assert set(rows) == {(16, 0.5), (16, 1.0), (24, 0.5), (24, 1.0)}
    assert len(set(rows.values())) == 4
    assert rows[16, 1.0] == report["negative_log_likelihood"]
    alone = evaluate(capsys, run.path, "image_size=24", "crop_ratio=0.5")
    assert alone["negative_log_likelihood"] == rows[24, 0.5]
    assert main(["evaluate", str(run.path), "--sizes", "24"]) == 0
    assert "image size  crop ratio" in capsys.readouterr().out


def test_a_model_without_names_takes_data_of_as_many_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitrail.create_model("deit_tiny", image_size=16, patch_size=4, dim=32, num_heads=2, depth=1, num_classes=24)
    vitrail.save_model(model, tmp_path)
    report = evaluate(capsys, tmp_path, f"data={SHAPES}", "split=train", "workers=1")
    assert report["count"] == 48
    assert "coarse_top1" in report  # the data says which
    assert "no names" in complaint(capsys, tmp_path, "data=fashion")
    assert "add data=SPEC" in complaint(capsys, tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["batchsize=4"], "did you mean 'batch_size'?"),
        (["split=tests"], "no split 'tests'"),
        (["level=species"], "no labels 'species'"),
        (["precision=fp8"], "precision must be one of"),
        (["batch_size=0"], "batch_size must be a whole number of at least 1"),
        (["image_size=large"], "image_size must be a whole number"),
        (["crop_ratio=2"], "at most 1"),
        (["crop_ratio=big"], "crop_ratio must be a number"),
        (["--sizes", "16,big"], "--sizes takes positive numbers"),
        (["--sizes", "17"], "17"),
    ],
)
def test_mistakes_are_one_line(
    run: RunFolder, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(capsys, run.path, *words)


def test_no_such_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such run or model" in complaint(capsys, tmp_path / "nothing")


def test_the_heads_of_a_distilled_model_are_measured_one_by_one(
    student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = open_dataset(SHAPES, "val")
    model: Any = vitrail.load_model(student)
    pixels = torch.stack([torch.from_numpy(np.asarray(data.read(index)).copy()) for index in range(len(data))])
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.preprocessing.mean, model.preprocessing.std))
    report = evaluate(capsys, student, f"data={SHAPES}", "precision=fp32", "crop_ratio=1.0")
    with torch.no_grad():
        summary = model.summarize((pixels.permute(0, 3, 1, 2) / 255 - mean) / std)
        of_class, of_teacher = model.head.both(summary)
    labels = torch.from_numpy(data.level().labels)
    answers = {
        "class": of_class,
        "distillation": of_teacher,
        "joint": of_class.softmax(dim=1) + of_teacher.softmax(dim=1),
    }
    assert list(report["heads"]) == list(answers)
    for name, answer in answers.items():
        right = (answer.argmax(dim=1) == labels).double().mean().item()
        assert report["heads"][name]["top1"] == pytest.approx(100 * right)
    own = ((of_class + of_teacher).argmax(dim=1) == labels).double().mean().item()
    assert report["top1"] == pytest.approx(100 * own)
    assert main(["evaluate", str(student), f"data={SHAPES}"]) == 0
    assert "top-1 of the heads" in capsys.readouterr().out


def test_models_of_one_head_have_no_heads_to_tell(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "heads" not in evaluate(capsys, run.path)


def test_tokens_are_compared_layer_by_layer(
    student: Path, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = evaluate(capsys, student, f"data={SHAPES}")
    report = evaluate(capsys, student, f"data={SHAPES}", "--tokens")
    assert [row["after"] for row in report["tokens"]] == ["learned", "block 1", "block 2", "norm"]
    assert all(-1 <= row["cosine"] <= 1 for row in report["tokens"])
    assert report["negative_log_likelihood"] == plain["negative_log_likelihood"]
    assert main(["evaluate", str(student), "--tokens", f"data={SHAPES}"]) == 0
    assert "cosine of class and distillation token" in capsys.readouterr().out
    assert "has no class token and distillation token" in complaint(capsys, run.path, "--tokens")
    pooled = save_student(tmp_path / "pooled", "resmlp_s12", seed=1, distilled=True)
    assert "has no class token" in complaint(capsys, pooled, "--tokens", f"data={SHAPES}")


def test_models_are_compared_with_each_other_and_with_the_labels(
    run: RunFolder, student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = evaluate(capsys, run.path, "precision=fp32")
    heads = evaluate(capsys, student, f"data={SHAPES}", "precision=fp32")["heads"]
    report = evaluate(capsys, "--compare", run.path, student, f"data={SHAPES}", "precision=fp32")
    names = [row["name"] for row in report["rows"]]
    assert names == ["groundtruth", "first", "student class", "student distillation", "student joint"]
    matrix = np.array(report["disagreement"])
    assert np.array_equal(matrix, matrix.T)
    assert not matrix.diagonal().any()
    errors = [own["top1"], *(heads[head]["top1"] for head in ("class", "distillation", "joint"))]
    assert matrix[0, 1:] == pytest.approx([1 - top1 / 100 for top1 in errors])
    assert (report["count"], report["num_left_out"]) == (24, 0)
    words = ["evaluate", str(run.path), str(student), "--compare", "precision=fp32"]  # on the first one's own data
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["1", "2", "3", "4", "5"]
    assert lines[4].split()[:3] == ["2", "first", f"{matrix[1, 0]:.3f}"]


def test_compared_classes_are_matched_by_name(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3)).tolist()
    turned = save_student(tmp_path / "turned", "deit_tiny_distilled", seed=1, order=order, num_heads=2)
    report = evaluate(capsys, "--compare", student, turned, f"data={SHAPES}", "precision=fp32")
    matrix = np.array(report["disagreement"])
    assert not matrix[1:4, 4:].diagonal().any()
    assert np.array_equal(matrix[0, 1:4], matrix[0, 4:])
    assert matrix[0, 1:].all()


def test_comparing_needs_models_that_can_be_compared(
    run: RunFolder, student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--compare takes at least two runs or models" in complaint(capsys, "--compare", run.path)
    assert "required" in complaint(capsys, "--compare")
    assert "which model?" in complaint(capsys, f"data={SHAPES}")
    assert "compared with --compare" in complaint(capsys, run.path, student)
    assert "no such run or model" in complaint(capsys, "--compare", run.path, tmp_path / "nothing")
    assert "--sizes is for one model" in complaint(capsys, "--compare", run.path, student, "--sizes", "16")
    other = tmp_path / "other"
    vitrail.save_model(vitrail.create_model("deit_tiny", image_size=16, patch_size=4, dim=32, num_heads=2), other)
    assert f"{other}: shapes has 24 classes and the model 1000" in complaint(capsys, "--compare", run.path, other)
