"""What tasks without labels share, by a toy of one: data, measures, collapse, and what becomes of its run."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import run_in

from vitrail.settings.own import allow_own
from vitrail.training.runs.run_folder import RunFolder

TOY = (
    "task=toy_views:Views",
    "augmentation.repeats=1",
    "regularisation.ema=null",
    "model=deit_tiny",
    "model.settings={patch_size: 8, dim: 16, depth: 1, num_heads: 2}",
    "epochs=1",
)


@pytest.fixture(autouse=True)
def _trusting() -> None:
    allow_own("toy_views:Views")


def evaluations(run: RunFolder) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "eval"]


def make_photos(folder: Path, count: int, *, size: int = 16) -> Path:
    """A flat folder of images of noise."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_run_with_labels_measures_them_and_says_so(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", *TOY)
    [line] = evaluations(run)
    assert {"knn_top1", "probe_top1", "effective_rank", "feature_deviation"} <= line.keys()
    task = json.loads(run.task_file.read_text())
    assert task == {"task": "toy_views:Views", "num_train": 48, "num_val": 24, "uses_labels": False}


def test_a_flat_folder_is_enough(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 20)
    run = run_in(tmp_path / "run", *TOY, f"data={photos}", "batch_size=8", "epochs=2")
    lines = evaluations(run)
    assert all("knn_top1" not in line and line["effective_rank"] >= 1.0 for line in lines)
    assert len(lines) == 2
