import base64
import csv
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from tiny_runs import task_of, tiny_recipe

from vitrail.data.blend import IMAGENET_MEAN, IMAGENET_STD
from vitrail.data.datasets import open_dataset
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change, write_yaml
from vitrail.tasks.classify.report.answered import Predictions, read_predictions
from vitrail.tasks.classify.report.answers import calibrate, count_mistakes, find_most_wrong
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.contract import StepContext
from vitrail.training.runs.report import summarize, write_report
from vitrail.training.runs.report.outcome import describe_seconds, epoch_offsets, epochs_of, measure_outcome
from vitrail.training.runs.report.run_record import read_run

SCORES = "Precision, recall and F1 by class"


def train_line(step: int, *, stage: int = 0, **values: float) -> dict[str, object]:
    line = {
        "loss": 2.0,
        "lr": 1e-3,
        "gradient_norm": 1.0,
        "images_per_second": 500.0,
        "data_wait": 0.01,
        "seconds": step,
    }
    return {"kind": "train", "stage": stage, "step": step, "epoch": step / 10, **line, **values}


def eval_line(step: int, top1: float, *, stage: int = 0, **values: object) -> dict[str, object]:
    return {"kind": "eval", "stage": stage, "step": step, "epoch": step / 10, "top1": top1, "count": 4, **values}


def write_metrics(folder: Path, lines: list[dict[str, object]], *, end: str = "") -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end)


def write_recipe(folder: Path, **changes: object) -> Recipe:
    recipe = change(ClassifyRecipe(), {"model": "cait_xxs24", "data": "fashion", "epochs": 2, **changes})
    (folder / "recipe.yaml").write_text(write_yaml(recipe))
    return recipe


def write_predictions(folder: Path, predictions: Predictions) -> None:
    np.savez_compressed(folder / "predictions.npz", **vars(predictions))


def predict(rows: list[tuple[int, int, float]]) -> Predictions:
    """Answers given as target, answer and its probability."""
    targets, predicted, confidence = (np.array(column) for column in zip(*rows, strict=True))
    return Predictions(
        np.arange(len(rows)), targets, predicted, confidence, np.where(predicted == targets, confidence, 0.1)
    )


def write_fashion_run(folder: Path) -> None:
    """A whole run on `fashion` in which every tenth answer is wrong."""
    write_recipe(folder)
    val = open_dataset("fashion", "val")
    labels, coarse = val.level(), val.level("coarse")
    of = [int(coarse.labels[np.flatnonzero(labels.labels == index)[0]]) for index in range(10)]
    content = {"classes": labels.classes, "coarse": {"name": "coarse", "classes": coarse.classes, "of": of}}
    (folder / "classes.json").write_text(json.dumps(content))
    first = eval_line(10, 80.0, negative_log_likelihood=0.7)
    last = eval_line(20, 90.0, coarse_top1=97.0, top5=99.0, negative_log_likelihood=0.5)
    write_metrics(folder, [train_line(10), first, train_line(20), last])
    targets = labels.labels
    predicted = np.where(np.arange(len(targets)) % 10 == 0, (targets + 1) % 10, targets)
    probability = np.full(len(targets), 0.9)
    write_predictions(folder, Predictions(np.arange(len(targets)), targets, predicted, probability, probability / 20))
    (folder / "plan.json").write_text(json.dumps({"micro_batch": 32, "environment": {"torch": "2.0"}}))
    (folder / "quarantine.csv").write_text("path,split,problem,detail\nx/<i>.jpg,train,broken,is empty\n")
    (folder / "model").mkdir()


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(drawing) for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


def test_report_of_a_whole_run_has_every_part_and_needs_nothing_else(tmp_path: Path) -> None:
    write_fashion_run(tmp_path)
    path = write_report(tmp_path)
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "<h1>cait_xxs24 on fashion</h1>" in page
    assert "Finished: 2 of 2 epochs are done: 90.0 % top-1." in page
    for title in ("Course", "Confusion", "Most confused pairs", "Calibration", "Accuracy by class", "Recipe", SCORES):
        assert f"<h2>{title}</h2>" in page
    assert "environment.torch" in page
    assert "x/&lt;i&gt;.jpg" in page
    assert page.count("data:image/jpeg;base64,") == 28
    assert not re.search(r"https?://|<script|<link", page)
    assert len(charts(page)) == 6 + 3
    assert path.stat().st_size < 1_000_000
    assert not list(tmp_path.glob(".report*"))


def test_report_of_an_empty_folder_is_written(tmp_path: Path) -> None:
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f"<h1>{tmp_path.name}</h1>" in page
    assert "Not finished: nothing is done yet." in page
    assert charts(page) == []
    assert summarize(tmp_path) == f"{tmp_path.name}. Not finished: nothing is done yet."


@pytest.mark.parametrize(
    "missing", ["recipe.yaml", "classes.json", "metrics.jsonl", "plan.json", "quarantine.csv", "predictions.npz"]
)
def test_any_part_may_be_missing(tmp_path: Path, missing: str) -> None:
    write_fashion_run(tmp_path)
    (tmp_path / missing).unlink()
    assert "</html>" in write_report(tmp_path).read_text(encoding="utf-8")
    assert summarize(tmp_path)


@pytest.mark.parametrize("damaged", ["recipe.yaml", "classes.json", "plan.json", "predictions.npz"])
def test_a_damaged_part_is_named_and_the_rest_is_shown(tmp_path: Path, damaged: str) -> None:
    write_fashion_run(tmp_path)
    (tmp_path / damaged).write_bytes(b"{half: [")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f"<p>{damaged}: " in page
    assert "90.0 % top-1" in page


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder: give the folder of a run"):
        write_report(tmp_path / "none")


def test_killed_run_is_reported_up_to_its_last_whole_line(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    write_metrics(tmp_path, [train_line(5), eval_line(5, 40.0)], end='{"kind": "train", "st')
    run = read_run(tmp_path)
    assert [line["step"] for line in run.train] == [5]
    assert measure_outcome(run).verdict == "Not finished: 0.5 of 2 epochs are done: 40.0 % top-1."
    assert len(charts(write_report(tmp_path).read_text(encoding="utf-8"))) == 5  # there was no loss on val


def test_steps_gone_through_twice_count_as_they_went_last(tmp_path: Path) -> None:
    write_metrics(tmp_path, [train_line(1), train_line(2, loss=9.0), train_line(3), train_line(2, loss=1.0)])
    assert [(line["step"], line["loss"]) for line in read_run(tmp_path).train] == [(1, 2.0), (2, 1.0)]


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    lines = [train_line(1), train_line(2, loss=math.nan, gradient_norm=math.inf), train_line(3, loss=1.0)]
    write_metrics(tmp_path, lines)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))


def test_stages_follow_each_other_and_the_best_is_of_the_last(tmp_path: Path) -> None:
    write_recipe(tmp_path, stages=[{"epochs": 4}, {"epochs": 2}])
    write_metrics(
        tmp_path,
        [train_line(40), eval_line(40, 95.0), train_line(10, stage=1), eval_line(10, 60.0, stage=1)],
    )
    run = read_run(tmp_path)
    outcome = measure_outcome(run)
    assert epochs_of(run.train, epoch_offsets(run)) == [4.0, 5.0]
    assert (outcome.epochs, outcome.planned_epochs, outcome.epoch_of_best) == (5.0, 6.0, 5.0)
    assert outcome.best is not None
    assert outcome.best["top1"] == 60.0
    assert ">stage 2<" in write_report(tmp_path).read_text(encoding="utf-8")


def test_time_is_summed_over_the_sittings_of_a_run(tmp_path: Path) -> None:
    write_metrics(tmp_path, [train_line(step, seconds=seconds) for step, seconds in ((1, 5), (2, 50), (3, 4), (4, 9))])
    assert measure_outcome(read_run(tmp_path)).seconds == 59.0


def test_seconds_are_described_in_the_two_largest_units() -> None:
    described = [describe_seconds(seconds) for seconds in (9.6, 221, 3600 * 5 + 61, 86400 * 2 + 7300)]
    assert described == ["10 s", "3 min 41 s", "5 h 1 min", "2 d 2 h"]


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (0.01, "Data loading keeps up: the model waited for data 1.0 % of the time."),
        (0.1, "Data loading costs a little speed"),
        (0.4, "Data loading holds the run back"),
    ],
)
def test_verdict_on_data_loading_follows_the_waiting(tmp_path: Path, share: float, verdict: str) -> None:
    write_metrics(tmp_path, [train_line(1, data_wait=share), train_line(2, data_wait=share)])
    assert verdict in write_report(tmp_path).read_text(encoding="utf-8")
    assert verdict in summarize(tmp_path)


@pytest.mark.parametrize(
    ("device", "remedy"), [("cpu (x86)", "more workers hardly help"), ("cuda:0", "more workers, up to")]
)
def test_what_helps_against_waiting_depends_on_the_device(tmp_path: Path, device: str, remedy: str) -> None:
    write_metrics(tmp_path, [train_line(1, data_wait=0.4), train_line(2, data_wait=0.4)])
    (tmp_path / "plan.json").write_text(json.dumps({"device": device}))
    assert remedy in summarize(tmp_path)


def test_a_fall_from_the_best_accuracy_is_said(tmp_path: Path) -> None:
    write_metrics(tmp_path, [eval_line(10, 80.0), eval_line(20, 70.0)])
    assert "70.0 % top-1, after 80.0 % at epoch 1." in summarize(tmp_path)


def test_leaving_the_band_of_a_published_curve_is_said_and_drawn(tmp_path: Path) -> None:
    lines = [
        eval_line(step, top1, against={"side": side, "published": 50.0, "low": 48.0, "high": 52.0})
        for step, top1, side in ((10, 50.0, "inside"), (20, 40.0, "below"), (25, 41.0, "below"), (30, 51.0, "inside"))
    ]
    write_metrics(tmp_path, lines)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    said = (
        "The run left the band of the published curve: below it from epoch 2 (step 20), inside again from epoch 3 "
        "(step 30); 2 of 4 evaluations are outside."
    )
    assert said in page
    assert said in summarize(tmp_path)
    assert page.count('<polygon class="band"') == 1
    write_metrics(tmp_path, lines[::3])
    assert "All 2 evaluations compared are inside the band" in summarize(tmp_path)


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('\"')</script>\n"
    write_recipe(tmp_path, name=evil, data=evil, model=evil)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": [evil, "b"], "coarse": None}))
    (tmp_path / "plan.json").write_text(json.dumps({evil: [evil]}))
    (tmp_path / "quarantine.csv").write_text(f'path,split,problem,detail\n"{evil.replace(chr(34), "")}",train,x,\n')
    write_predictions(tmp_path, predict([(0, 1, 0.9), (1, 0, 0.8), (1, 1, 0.7)]))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert charts(page)


def test_without_the_data_wrong_answers_are_listed_without_pictures(tmp_path: Path) -> None:
    write_fashion_run(tmp_path)
    write_recipe(tmp_path, data=str(tmp_path / "gone"))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No pictures: the data cannot be opened (no folder or file" in page
    assert "data:image" not in page
    assert page.count('<span class="wrong">') >= 28


def test_pictures_of_other_data_are_not_shown(tmp_path: Path) -> None:
    write_fashion_run(tmp_path)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": [f"other {index}" for index in range(10)]}))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No pictures: the data is no longer what the run was evaluated on." in page


def test_of_many_classes_the_matrix_shows_the_most_confused(tmp_path: Path) -> None:
    rows = [(index, index, 0.9) for index in range(50) for _ in range(4)]
    rows += [(index, (index + 1) % 50, 0.6) for index in range(40) for _ in range(1 + (index >= 5))]
    write_predictions(tmp_path, predict(rows))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    said = re.search(r"Shown are the 30 classes with the most mistakes, which have (\d+) % of all; the other 20", page)
    assert said is not None
    assert 75 <= int(said[1]) <= 85
    assert ">any other<" in page


def test_mistakes_are_counted_by_class_and_by_pair() -> None:
    predictions = predict([(0, 0, 0.9), (0, 1, 0.8), (0, 1, 0.7), (0, 2, 0.6), (2, 2, 0.9), (2, 0, 0.5)])
    mistakes = count_mistakes(predictions, num_classes=4)
    assert mistakes.num_images.tolist() == [4, 0, 2, 0]
    assert mistakes.accuracy.tolist() == [25.0, 0.0, 50.0, 0.0]
    assert mistakes.seen.tolist() == [0, 2]
    assert mistakes.num_mistakes == 4
    assert mistakes.num_involved.tolist() == [4, 2, 2, 0]
    assert mistakes.pairs == ((0, 1, 2, 0.5), (0, 2, 1, 0.25), (2, 0, 1, 0.5))


def test_classes_are_listed_with_their_scores_the_worst_first_and_can_be_sorted(tmp_path: Path) -> None:
    write_predictions(tmp_path, predict([(0, 0, 0.9), (0, 1, 0.9), (0, 0, 0.9), (1, 1, 0.9), (2, 1, 0.9), (2, 3, 0.9)]))
    (tmp_path / "task.json").write_text(json.dumps({"classes": ["a", "b", "c", "d", "e"]}))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    section = page[page.index(SCORES) :]
    assert "precision 44.4 %, recall 55.6 %, F1 43.3 %" in section  # of a, b and c; d has no images
    rows = re.findall(r'<tr style="([^"]*)">(.*?)</tr>', section)
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for _, row in rows]
    assert cells == [
        ["c", "2", "0", "0", "0.0", "0.0", "0.0"],
        ["d", "0", "1", "0", "", "", ""],
        ["b", "1", "3", "1", "33.3", "100.0", "50.0"],
        ["a", "3", "2", "2", "100.0", "66.7", "80.0"],
    ]
    ranks = [dict(re.findall(r"--by-(\d):(\d+)", style)) for style, _ in rows]
    assert [rank["0"] for rank in ranks] == ["3", "4", "2", "1"]  # by name
    assert [rank["2"] for rank in ranks] == ["4", "3", "1", "2"]  # by the number of answers, the most first
    assert [rank["6"] for rank in ranks] == ["1", "4", "2", "3"]  # by F1, the least first
    assert 'id="classes-by-6" checked' in section
    assert len(re.findall(r'<label for="classes-by-\d">', section)) == 7


def test_scores_of_images_with_several_labels_come_from_classes_csv(tmp_path: Path) -> None:
    write_predictions(tmp_path, predict([(-1, 0, 0.9)]))
    (tmp_path / "classes.csv").write_text("class,count,num_answers,num_right\na,2,1,1\nb,1,2,1\n")
    (tmp_path / "task.json").write_text(json.dumps({"classes": ["a", "b"]}))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "precision 75.0 %, recall 75.0 %, F1 66.7 %" in page
    (tmp_path / "classes.csv").write_text("class,count\na,x\n")
    assert "<p>classes.csv: " in write_report(tmp_path).read_text(encoding="utf-8")


def test_metrics_are_a_table_with_the_union_of_all_keys(tmp_path: Path) -> None:
    note = {"kind": "layers", "stage": 0, "step": 10, "ratios": [1.0]}
    against = {"side": "below", "low": 48.0}
    lines = [train_line(5), train_line(10), note, eval_line(10, 80.0, against=against)]
    write_metrics(tmp_path, [*lines, train_line(10), train_line(2, stage=1, loss=math.nan)])
    write_report(tmp_path)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["stage"], row["step"]) for row in rows] == [
        ("train", "0", "5"),
        ("train", "0", "10"),
        ("eval", "0", "10"),
        ("train", "1", "2"),
    ]
    assert list(rows[0])[:4] == ["kind", "stage", "step", "epoch"]
    assert (rows[0]["loss"], rows[0]["top1"], rows[2]["loss"], rows[2]["top1"]) == ("2.0", "", "", "80.0")
    assert (rows[2]["against.side"], rows[2]["against.low"]) == ("below", "48.0")


@pytest.mark.parametrize(
    ("words", "num_captions"),
    [
        ((), 2),
        (("blend.mixup=0", "blend.cutmix=0"), 1),
        (("task=embed", "embedding.views=2", "embedding.instance=1.0"), 1),
    ],
)
def test_a_batch_is_shown_as_training_saw_it(tmp_path: Path, words: tuple[str, ...], num_captions: int) -> None:
    recipe = tiny_recipe(*words)
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    task = task_of(recipe)
    data = task.open()
    task_file = tmp_path / "task.json"
    task_file.write_text(json.dumps(task.describe(data.describe())))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    section = page[page.index("What training saw") :]
    figures = re.findall(r'<img src="data:image/png;base64,([^"]+)".*?<figcaption>(.*?)</figcaption>', section)
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) for content, _ in figures]
    assert len(shown) == 14
    assert {caption.count("<br>") + 1 for _, caption in figures} == {num_captions}
    task.attach(task.make_model(task.describe(data.describe())))
    batch = next(iter(task.make_loaders(num_parts=1, listing=None).train.epoch(0)))
    images = task.prepare(batch, StepContext(recipe.seed, epoch=0, step=0)).images.flatten(end_dim=-4)
    scale, shift = (np.array(values)[:, None, None] for values in (IMAGENET_STD, IMAGENET_MEAN))
    expected = 255 * (images[:14].numpy() * scale + shift)
    assert np.abs(np.stack(shown).transpose(0, 3, 1, 2) - expected).max() <= 1.0  # a mean of two is rounded
    task_file.write_text(json.dumps(task.describe(data.describe()) | {"num_train": 7}))
    assert "What training saw" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_calibration_is_the_gap_between_confidence_and_accuracy() -> None:
    calibration = calibrate(predict([(0, 0, 0.9), (0, 1, 0.9), (0, 0, 0.5), (0, 0, 0.5)]))
    assert calibration.error == pytest.approx(100 * (0.5 * 0.4 + 0.5 * 0.5))
    assert calibration.verdict.startswith("The probabilities are off in both directions")
    assert calibrate(predict([(0, 1, 0.9)])).verdict.startswith("The model is too sure of itself")
    assert calibrate(predict([(0, 0, 0.4)])).verdict.startswith("The model is right more often than it says")
    assert calibrate(predict([(0, 0, 1.0)])).verdict.startswith("The probabilities can be taken at their word")


def test_most_wrong_are_the_surest_wrong_answers() -> None:
    predictions = predict([(0, 1, 0.5), (0, 0, 0.99), (0, 1, 0.9), (1, 0, 0.7)])
    assert find_most_wrong(predictions, limit=2) == [2, 3]


def test_images_without_a_label_are_not_judged(tmp_path: Path) -> None:
    write_predictions(tmp_path, predict([(-1, 0, 0.9), (1, 1, 0.9)]))
    predictions = read_predictions(read_run(tmp_path))
    assert predictions is not None
    assert predictions.indices.tolist() == [1]
    write_predictions(tmp_path, predict([(-1, 0, 0.9)]))
    assert read_predictions(read_run(tmp_path)) is None


def test_summary_says_how_the_run_went(tmp_path: Path) -> None:
    write_fashion_run(tmp_path)
    lines = summarize(tmp_path).splitlines()
    assert lines[0] == "cait_xxs24 on fashion. Finished: 2 of 2 epochs are done: 90.0 % top-1."
    assert lines[1] == "97.0 % coarse top-1, 20 s of training, 500 images/s"
    assert lines[2].startswith("Data loading keeps up")
    assert lines[3].startswith("Most often mistaken: ")
    assert lines[4] == f"1 broken file replaced, listed in {tmp_path / 'quarantine.csv'}."
    assert len(lines) == 5
