"""Segmentation as runs: what they learn, measure, leave, resume and refuse."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import finish, run_in, run_two, start, task_of, tiny_recipe, wait_for_step

import vitrail
from vitrail.cli import main
from vitrail.heads.segment import SegmentModel
from vitrail.training.runs.report import write_report
from vitrail.training.runs.run_folder import RunFolder

WORDS = (
    "task=segment",
    "regularisation.ema=null",
    "model=deit_tiny",
    "model.settings={patch_size: 8, dim: 16, depth: 2, num_heads: 2}",
    "data=shapes:size=48,count=24,val=10",
    "image_size=[32, 40]",
    "batch_size=8",
    "run.micro_batch=4",
    "epochs=3",
    "lr=3e-3",
    "segment.channels=16",
)


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
    for title in ("Worst pictures", "Intersection over union by class", "Confusion", "Right pixels of val, %"):
        assert title in page
    assert main(["evaluate", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean_iou"] == pytest.approx(last["mean_iou"], abs=1e-2)  # folded: a pixel may tip over
    rows = [row["iou"] for row in found["classes"] if row["iou"] is not None]
    assert found["mean_iou"] == pytest.approx(np.mean(rows))
