"""Detection as runs: what they learn, leave, resume and refuse."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_folders import box_row, write_coco, write_image
from PIL import Image
from tiny_dense import DETECT_CHAINED
from tiny_runs import finish, run_in, run_two, start, task_of, tiny_recipe, wait_for_step
from together import run_worlds

import vitrail
from vitrail.cli import main
from vitrail.data.blend import Normalize
from vitrail.data.dense.contract import ObjectBatch
from vitrail.heads.mask_rcnn import Detections, Detector
from vitrail.tasks.contract import StepContext
from vitrail.tasks.detect.asking import ask
from vitrail.tasks.detect.coco_measures import decode_mask
from vitrail.tasks.detect.found_objects import to_found
from vitrail.training.runs.report import write_report
from vitrail.training.runs.run_folder import RunFolder

WORDS = (
    *DETECT_CHAINED,
    "data=shapes:size=64,count=16,val=5",
    "run.micro_batch=4",
    "epochs=2",
    "detector.max_detections=10",
    "augmentation.short_sides=[48, 64]",
    "augmentation.crop=0.5",
    "augmentation.crop_short_sides=[56]",
    "augmentation.crop_sides=[32, 48]",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "detect", *WORDS)


def evaluations(run: RunFolder) -> list[dict[str, Any]]:
    return [record for record in run.read_metrics() if record["kind"] == "eval"]


def losses(run: RunFolder) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.read_metrics() if record["kind"] == "train"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return vitrail.load_model(folder / "model").state_dict()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Images of three sizes, one of them a line, and a file that is no image."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "a.png")
    Image.fromarray(noise[:40]).save(folder / "b.png")
    Image.fromarray(np.repeat(noise[:1], 10, axis=1)[:, :900]).save(folder / "line.png")
    return folder


def test_speed_and_memory_are_those_of_torch(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", str(run.path), "--batch", "1,2", "--seconds", "0.01", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out).values()
    assert {one["engine"] for one in found["measurements"]} == {"eager"}
    assert all(one["images_per_second"] > 0.0 for one in found["measurements"])
    assert all(0.0 < one["peak_mb"] < 1e4 for one in found["measurements"] if one["batch"] == 2)
    assert main(["benchmark", str(run.path), "--engines", "onnx"]) == 2
    assert "is a detector, which eager alone takes" in capsys.readouterr().err


def test_two_processes_measure_what_one_does(run: RunFolder) -> None:
    whole = vitrail.evaluate(run.path, batch_size=1)
    for found in run_worlds(2, lambda world: vitrail.evaluate(run.path, batch_size=1, world=world)):
        assert found.record == whole.record


def test_a_run_leaves_numbers_pictures_and_a_model(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    _, last = evaluations(run)
    assert {"box_ap", "box_ap50", "box_ar100", "mask_ap", "mask_ap75"} <= last.keys()
    assert losses(run)[4] < losses(run)[1]
    train = next(record for record in run.read_metrics() if record["kind"] == "train")
    parts = ("objectness", "proposals", "classes", "boxes", "masks")
    assert sum(train[f"loss_{name}"] for name in parts) == pytest.approx(train["loss"], rel=1e-4)
    trained = vitrail.load_trained(run.path)
    assert isinstance(trained.model, Detector)
    assert (trained.task, trained.num_classes, trained.class_names[0]) == ("detect", 6, "circle")
    assert main(["inspect", str(run.path), "data=shapes:size=64,count=4,val=2", f"out={run.path / 'inspected'}"]) == 0
    capsys.readouterr()
    page = write_report(run.path).read_text(encoding="utf-8")
    titles = ("Worst pictures", "Average precision by class", "Average precision on val, %", "Parts of the loss")
    for title in (*titles, "Taken for, missed and invented", "What training saw"):
        assert title in page
    assert page.partition('id="batch"')[2].count("data:image/jpeg") == 8  # a whole batch with its objects
    assert main(["evaluate", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in ("box_ap", "mask_ap")} == pytest.approx(
        {key: last[key] for key in ("box_ap", "mask_ap")}, abs=0.05
    )
    assert [row["class"] for row in found["classes"]] == list(trained.class_names)
    assert main(["evaluate", str(run.path), "split=train", "batch_size=3"]) == 0
    printed = capsys.readouterr().out
    assert "train of shapes: 16 images" in printed
    assert "box AP" in printed


def test_predict_writes_overlays_coco_and_yolo(
    run: RunFolder, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = pictures.parent / "out"
    assert main(["predict", str(run.path), str(pictures), "--out", str(out), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["height"], one["width"]) for one in answers] == [(64, 96), (40, 96), (1, 900)]
    assert all(one["objects"] for one in answers)
    coco = json.loads((out / "coco.json").read_text())
    assert [image["file_name"] for image in coco["images"]] == [one["path"] for one in answers]
    assert len(coco["annotations"]) == sum(len(one["objects"]) for one in answers)
    first, told = coco["annotations"][0], answers[0]["objects"][0]
    left, top, width, height = first["bbox"]
    assert [left, top, left + width, top + height] == pytest.approx(told["box"], abs=0.01)
    assert decode_mask(first["segmentation"]).shape == (64, 96)
    assert [one["area"] for one in coco["annotations"]] == [
        decode_mask(one["segmentation"]).sum() for one in coco["annotations"]
    ]
    lines = (out / "labels" / "a.txt").read_text().splitlines()
    assert len(lines) == len(answers[0]["objects"])
    values = [float(word) for word in lines[0].split()]
    assert values[1] * 96 == pytest.approx(left + width / 2, abs=0.01)
    assert values[4] * 64 == pytest.approx(height, abs=0.01)
    assert {path.name for path in (out / "overlays").iterdir()} == {"a.png", "b.png", "line.png"}
    assert (out / "classes.txt").read_text().split()[0] == "circle"
    (pictures / "b.png").write_bytes(b"no image")
    assert main(["predict", str(run.path), str(pictures), "--top", "1"]) == 1
    printed = capsys.readouterr()
    assert "b.png" in printed.err
    assert "and " in printed.out


def test_a_threshold_leaves_objects_out(run: RunFolder, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, out = str(pictures / "a.png"), pictures.parent / "some"
    assert main(["predict", str(run.path), image, "--json"]) == 0
    scores = [one["probability"] for one in json.loads(capsys.readouterr().out)["objects"]]
    middle = (scores[3] + scores[4]) / 2
    assert main(["predict", str(run.path), image, "--json", "--threshold", str(middle), "--out", str(out)]) == 0
    kept = [one["probability"] for one in json.loads(capsys.readouterr().out)["objects"]]
    assert kept == [score for score in scores if score >= middle]
    assert 0 < len(kept) < len(scores)
    assert len(json.loads((out / "coco.json").read_text())["annotations"]) == len(kept)
    assert len((out / "labels" / "a.txt").read_text().splitlines()) == len(kept)
    assert main(["predict", str(run.path), image, "--threshold", "30"]) == 2
    assert "a probability from 0 to 1, such as 0.3, not '30'" in capsys.readouterr().err


def test_explain_draws_gradients_of_classes(run: RunFolder, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pictures.parent / "maps"
    assert main(["explain", str(run.path), str(pictures / "a.png"), f"out={out}"]) == 0
    assert "1 picture of gradient" in capsys.readouterr().out
    assert "most probable object" in (out / "index.html").read_text(encoding="utf-8")
    for words in ((str(pictures / "a.png"), f"out={out}", "kind=attention"), ("--score", "data=shapes:count=4,val=2")):
        assert main(["explain", str(run.path), *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_answers_do_not_depend_on_the_batch(run: RunFolder, pictures: Path) -> None:
    trained = vitrail.load_trained(run.path)
    paths = [str(path) for path in sorted(pictures.iterdir())]
    several, alone = (trained.predict(paths, batch_size=size) for size in (3, 1))
    assert isinstance(several, list)
    assert isinstance(alone, list)
    for one, other in zip(several, alone, strict=True):
        for found, wanted in zip(one.record()["objects"], other.record()["objects"], strict=True):
            assert found["box"] == pytest.approx(wanted["box"], abs=0.02)


def test_masks_are_pasted_into_the_image_as_it_is_stored() -> None:
    masks = torch.ones(1, 28, 28)
    masks[:, :14] = 0.0
    found = Detections(torch.tensor([[8.0, 8, 40, 40]]), torch.tensor([0.9]), torch.tensor([2]), masks)
    [one] = to_found(found, shown=(64, 64), size=(128, 256))
    assert one.box == pytest.approx((32, 16, 160, 80))
    assert one.mask is not None
    mask = decode_mask(one.mask)
    assert mask.shape == (128, 256)
    assert mask[:45].sum() == 0  # the upper half of the box
    assert mask[52:78, 36:156].all()


@pytest.mark.parametrize(("count", "threads"), [(1, 3), (2, 1), (5, 1)])
def test_a_single_batch_has_all_threads_and_several_have_one_each(count: int, threads: int) -> None:
    seen: list[int] = []

    class Blind(torch.nn.Module):
        def forward(self, images: torch.Tensor, sizes: torch.Tensor) -> list[Detections]:
            seen.append(torch.get_num_threads())
            nothing = torch.zeros(0)
            return [Detections(torch.zeros(0, 4), nothing, nothing, None)] * len(images)

    size = torch.tensor([[32, 32]])
    batches = [
        ObjectBatch(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), size, (), torch.tensor([number]), size)
        for number in range(count)
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = list(ask(Blind(), iter(batches), normalize=Normalize(), device=torch.device("cpu")))
    finally:
        torch.set_num_threads(before)
    assert [answer.place for answer in found] == list(range(count))
    assert seen == [threads] * count


def test_two_processes_give_the_losses_and_numbers_of_one(tmp_path: Path) -> None:
    words = (*WORDS, "run.micro_batch=2", "regularisation.drop_path=0.2")
    run_two(tmp_path / "two", *words)
    one = run_in(tmp_path / "one", *words)
    two = RunFolder(tmp_path / "two")
    first, second = losses(one), losses(two)
    common = sorted(first.keys() & second.keys())
    assert {1, 4} <= set(common)
    assert [second[step] for step in common] == pytest.approx([first[step] for step in common], rel=1e-5)
    for found, wanted in zip(evaluations(two), evaluations(one), strict=True):
        assert found["box_ap"] == pytest.approx(wanted["box_ap"], abs=0.05)


def test_lanes_change_no_bit(tmp_path: Path) -> None:
    words = (*WORDS, "epochs=1", "evaluation.every=1", "regularisation.drop_path=0.2")
    for threads in (1, 2):
        run_in(tmp_path / str(threads), *words, f"run.threads={threads}")
    one, other = (weights(tmp_path / name) for name in ("1", "2"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_killed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    words = (*WORDS, "epochs=4", "run.save_minutes=0.0001", "evaluation.every=4")
    killed = tmp_path / "killed"
    process = start(killed, *words)
    wait_for_step(process, killed, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    finish(start(killed, *words))
    run_in(tmp_path / "whole", *words, "run.threads=1")
    one, other = (weights(folder) for folder in (killed, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_boxes_alone_are_learnt_by_faster_rcnn(tmp_path: Path) -> None:
    found = evaluations(run_in(tmp_path / "run", *WORDS, "detector.head=faster_rcnn", "epochs=1"))
    assert "box_ap" in found[-1]
    assert "mask_ap" not in found[-1]


def test_crowds_teach_nothing() -> None:
    task: Any = task_of(tiny_recipe(*WORDS))
    task.open()
    model = task.make_model(task.describe(task.data.describe()))
    task.attach(model)
    batch = task.prepare(task.example(2), StepContext(0, 0, 0))
    crowded = batch._replace(
        objects=tuple(one._replace(is_crowd=torch.ones_like(one.is_crowd)) for one in batch.objects)
    )
    parts = task.make_objective(total_steps=1)(model.train(), crowded).parts
    assert parts["boxes"] == parts["masks"] == 0.0


def test_data_that_does_not_suit_is_told_in_a_line(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.jpg", "b.jpg"):
        write_image(tmp_path / "coco" / "train" / name)
    file = tmp_path / "coco" / "annotations" / "instances_train.json"
    plain: dict[str, Any] = {"segmentation": []}
    write_coco(file, ["a.jpg", "b.jpg"], [{**box_row(number, 3, (2, 2, 8, 6)), **plain} for number in (1, 2)])
    spec = f"data=coco:{tmp_path / 'coco'}"
    assert main(["evaluate", str(run.path), spec, "split=train"]) == 2
    told = [capsys.readouterr().err]
    with pytest.raises(ValueError, match=r"have boxes and no masks: set detector\.head=faster_rcnn") as error:
        run_in(tmp_path / "run", *WORDS, spec)
    told.append(str(error.value))
    assert "does not know the classes cat" in told[0]
    assert all("\n" not in text.strip() and "Traceback" not in text for text in told)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("detector.anchor_sizes=[8, 16]",),
            r"detector\.anchor_sizes cannot be \[8, 16\]: there are five levels: name five sides in pixels",
        ),
        (("evaluation.image_size=64",), "whole images are measured"),
        (("sharding=full",), "can't be divided over processes"),
        (
            ("model=resmlp_s12", "model.settings={patch_size: 8, dim: 16, depth: 2}", "view.short_side=96"),
            "takes images",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        run_in(tmp_path / "run", *WORDS, *words)
    assert "\n" not in str(error.value).strip()
