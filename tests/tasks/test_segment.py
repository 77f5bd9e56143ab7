"""Segmentation as runs: what they learn, measure, leave, resume and refuse."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_folders import make_mask, write_image, write_mask
from PIL import Image
from tiny_dense import SEGMENT
from tiny_runs import finish, run_in, run_two, start, wait_for_step
from together import run_worlds

import vitrail
from vitrail.cli import main
from vitrail.evaluation.segmenting import Looking, Segmenter
from vitrail.heads.segment import SegmentModel
from vitrail.inference.folding import fold
from vitrail.training.loop.stage import Stage
from vitrail.training.runs.report import summarize, write_report
from vitrail.training.runs.run_folder import RunFolder

WORDS = (
    *SEGMENT,
    "data=shapes:size=48,count=24,val=10",
    "image_size=[32, 40]",
    "run.micro_batch=4",
    "epochs=3",
    "lr=3e-3",
    "segment.channels=16",
    "evaluation.short_side=64",
)
TRUNK = (*SEGMENT[2:4], "data=shapes:size=32,count=24,val=10", "image_size=32", "augmentation.repeats=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "segment", *WORDS)


def evaluations(run: RunFolder) -> list[dict[str, Any]]:
    return [record for record in run.read_metrics() if record["kind"] == "eval"]


def losses(run: RunFolder) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.read_metrics() if record["kind"] == "train"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return vitrail.load_model(folder / "model").state_dict()


def test_a_run_leaves_numbers_pictures_and_a_model(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    *_, last = evaluations(run)
    assert {"mean_iou", "pixel_accuracy", "class_accuracy"} <= last.keys()
    assert losses(run)[9] < losses(run)[1]
    train = next(record for record in run.read_metrics() if record["kind"] == "train")
    assert train["loss_pixels"] + 0.4 * train["loss_auxiliary"] == pytest.approx(train["loss"], rel=1e-4)
    trained = vitrail.load_trained(run.path)
    assert isinstance(trained.model, SegmentModel)
    assert trained.model.auxiliary is None
    page = write_report(run.path).read_text(encoding="utf-8")
    for title in ("Worst pictures", "Intersection over union by class", "Confusion", "What training saw"):
        assert title in page
    assert main(["evaluate", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean_iou"] == pytest.approx(last["mean_iou"], abs=1e-2)  # folded: a pixel may tip over
    rows = [row["iou"] for row in found["classes"] if row["iou"] is not None]
    assert found["mean_iou"] == pytest.approx(np.mean(rows))


def test_saved_models_and_predictions_look_as_the_run_did(run: RunFolder) -> None:
    alone = vitrail.evaluate(run.path / "model", data="shapes:size=48,count=24,val=10")
    assert alone.record["looking"] == "whole, short side 64"
    assert alone.figures == vitrail.evaluate(run.path).figures
    image = np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8)
    trained = vitrail.load_trained(run.path / "model")
    look = Segmenter(
        fold(trained.model), Looking(short_side=64), normalize=trained.normalize, device=torch.device("cpu")
    )
    assert np.array_equal(trained.predict(image).mask, look(torch.from_numpy(image).permute(2, 0, 1)[None])[0])  # type: ignore[union-attr]


def test_a_damaged_note_of_looking_is_told(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run.path / "model", tmp_path / "model")
    place = tmp_path / "model" / "task.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"looking": {"short_side": -1}}))
    assert main(["evaluate", str(tmp_path / "model"), "data=shapes:size=48,count=4,val=2"]) == 2
    assert "task.json" in capsys.readouterr().err


def test_rare_classes_weigh_more_where_it_is_asked(run: RunFolder, tmp_path: Path) -> None:
    balanced = run_in(tmp_path / "balanced", *WORDS, "epochs=1", "segment.balance=0.5")
    assert losses(balanced)[1] != losses(run)[1]
    assert losses(balanced)[1] == pytest.approx(losses(run)[1], rel=0.3)  # of the same order


def test_two_processes_give_the_losses_and_numbers_of_one(tmp_path: Path) -> None:
    words = (*WORDS, "regularisation.drop_path=0.2", "epochs=1")
    run_two(tmp_path / "two", *words)
    one, two = run_in(tmp_path / "one", *words, "run.micro_batch=8"), RunFolder(tmp_path / "two")
    first, second = losses(one), losses(two)
    assert {1, 3} <= first.keys() & second.keys()
    assert [second[step] for step in (1, 3)] == pytest.approx([first[step] for step in (1, 3)], rel=1e-5)
    assert evaluations(two)[-1]["mean_iou"] == pytest.approx(evaluations(one)[-1]["mean_iou"], abs=0.05)


def test_a_killed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    words = (*WORDS, "epochs=2", "run.save_minutes=0.0001", "evaluation.every=2")
    killed = tmp_path / "killed"
    process = start(killed, *words)
    wait_for_step(process, killed, 2)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    finish(start(killed, *words))
    run_in(tmp_path / "whole", *words, "run.threads=1")
    one, other = (weights(folder) for folder in (killed, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_two_processes_measure_what_one_does(run: RunFolder) -> None:
    whole = vitrail.evaluate(run.path, batch_size=3)
    for found in run_worlds(2, lambda world: vitrail.evaluate(run.path, batch_size=3, world=world)):
        assert found.record == whole.record


def test_an_export_is_proved_on_the_val_of_the_run(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run.path), "--to", "eager", f"out={tmp_path / 'out'}", "num_images=4"]) == 0
    told = capsys.readouterr().out
    assert "the same first class for 100.00% on 4 images (val of shapes)" in told
    found = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert found["measure"] == "mean IoU"
    assert found["accuracy"] == found["exported_accuracy"] > 0.0
    assert f"mean IoU on 4 labelled images: {found['accuracy']:.2f} % before" in told


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A linear head on the frozen trunk of a classifier, without one class."""
    folder = tmp_path_factory.mktemp("runs")
    run_in(folder / "trunk", *TRUNK, "epochs=1")
    words = ("segment.head=linear", "train_only=head", f"init={folder / 'trunk'}", "segment.ignore=[star]")
    return run_in(folder / "frozen", *WORDS, *words, "epochs=1")


def test_a_linear_head_on_a_frozen_trunk_is_a_pack_on_it(
    frozen: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trunk, trained = vitrail.load_trained(frozen.path.parent / "trunk").model, vitrail.load_trained(frozen.path)
    own = trained.model.trunk.state_dict()
    shared = {name for name, value in trunk.state_dict().items() if not name.startswith(("head.", "positions.patches"))}
    assert all(torch.equal(own[name], trunk.state_dict()[name]) for name in shared)
    assert "star" not in trained.class_names
    assert main(["pack", str(frozen.path), f"out={tmp_path / 'pack'}"]) == 0
    assert "%" in capsys.readouterr().out
    packed = vitrail.load_pack(trunk, tmp_path / "pack")
    assert packed.model.trunk.get_parameter("blocks.0.communication.branches.0.mix.qkv.weight").data_ptr() == (
        trunk.get_parameter("blocks.0.communication.branches.0.mix.qkv.weight").data_ptr()
    )
    image = np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8)
    one, other = (source.predict(image) for source in (packed, trained))
    assert np.array_equal(one.mask, other.mask)  # type: ignore[union-attr]


def test_predict_writes_masks_and_overlays_of_any_size(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (70, 5000, 3), dtype=np.uint8)
    sizes = {"a": (70, 45), "line": (1, 5000), "one": (1, 1)}
    for name, (height, width) in sizes.items():
        Image.fromarray(noise[:height, :width]).save(tmp_path / f"{name}.png")
    out = tmp_path / "out"
    assert main(["predict", str(run.path), *(str(tmp_path / f"{name}.png") for name in sizes), "--out", str(out)]) == 0
    assert "background" in capsys.readouterr().out
    for name, size in sizes.items():
        with Image.open(out / "masks" / f"{name}.png") as mask, Image.open(out / "overlays" / f"{name}.png") as overlay:
            assert (mask.mode, mask.size[::-1], overlay.size[::-1]) == ("P", size, size)
            assert np.array(mask).max() < 7
    assert main(["predict", str(run.path), str(tmp_path / "a.png"), "--json"]) == 0
    [answer] = map(json.loads, capsys.readouterr().out.splitlines())
    assert sum(row["share"] for row in answer["classes"]) == pytest.approx(1.0, abs=1e-4)
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert main(["predict", str(run.path), str(tmp_path / "broken.png")]) == 2


def test_evaluation_looks_as_it_is_asked(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--window", "32", "--scales", "0.75,1.5", "--flip", "--short-side", "40", "--json"]
    assert main(["evaluate", str(run.path), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["looking"] == "windows of 32 x 32, short side 40, scales 0.75, 1.5, mirrored too"
    assert found["count"] == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluation.crop_ratio=0.9",), "whole images are measured"),
        (("segment.ignore=[cat]",), "segment.ignore names 'cat', which is no class of the data"),
        (("segment.blocks=[0, 1, 1, 5]",), r"segment\.blocks names block 5, but deit_tiny has 2: from 0 to 1"),
        (
            ("segment.blocks=[1, 2]",),
            r"segment\.blocks cannot be \[1, 2\]: four blocks are read, counted from 0: name four",
        ),
        (
            ("evaluation.window=30",),
            r"evaluation\.window does not fit: a window of 30x30 can't be cut into patches of 8",
        ),
        (("model=resmlp_s12", "model.settings={patch_size: 8, dim: 16, depth: 2}", "evaluation.window=64"), "32x40"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_before_training(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "run", lambda stage: pytest.fail("training began"))
    with pytest.raises(ValueError, match=message) as error:
        run_in(tmp_path / "run", *WORDS, "epochs=1", *words)
    assert "\n" not in str(error.value).strip()


def test_it_is_not_compared_with_classifiers(
    run: RunFolder, frozen: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--compare", str(run.path), str(frozen.path.parent / "trunk")]) == 2
    assert "it says nothing about an image as a whole" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--tokens"], ["--sizes", "32"], ["level=x"]])
def test_options_of_classifiers_are_refused(
    run: RunFolder, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run.path), *option]) == 2
    assert "is measured without" in capsys.readouterr().err


@pytest.mark.parametrize("unlabelled", ["train", "val"])
def test_masks_without_a_labelled_pixel(unlabelled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    for number, split in enumerate(("train",) * 8 + ("val",) * 2):
        write_image(data / split / f"images/{number}.png", seed=number, size=(48, 48))
        mask = np.full((48, 48), 255, "uint8") if split == unlabelled else make_mask(2, size=(48, 48))
        write_mask(data / split / f"masks/{number}.png", mask)
    (data / "classes.txt").write_text("sky\nroad\n")
    words = (*WORDS, f"data=pairs:{data}", "epochs=1")
    if unlabelled == "train":
        with pytest.raises(ValueError, match="no pixel of the 8 training masks of data is of a class: all are 255"):
            run_in(tmp_path / "run", *words)
        return
    run = run_in(tmp_path / "run", *words)
    assert evaluations(run) == []
    assert "IoU" not in summarize(run.path)
    assert write_report(run.path).is_file()
    assert main(["evaluate", str(run.path)]) == 2
    assert "no pixel of the masks of val of data is of a class" in capsys.readouterr().err
    with pytest.raises(ValueError, match="early_stop needs evaluations"):
        run_in(tmp_path / "other", *words, "regularisation.early_stop=1")
