"""Metrics in TensorBoard and Weights & Biases: what is sent, and that a run that goes on stays one run."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tiny_runs import run_in, tiny_recipe

from vitrail.training.runs.run_folder import RunFolder
from vitrail.training.runs.trackers import numbers, open_trackers

TRAIN = {"kind": "train", "stage": 0, "step": 3, "epoch": 1.0, "loss": 2.5}


class Recorder:
    """Stands for the package wandb, and for a run of it."""

    def __init__(self, *, api_key: str | None = None) -> None:
        self.settings: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.num_finished = 0
        self.is_reachable = True
        self.api = SimpleNamespace(api_key=api_key)
        self.errors = SimpleNamespace(CommError=ConnectionError)

    def init(self, **settings: Any) -> "Recorder":
        if settings["mode"] == "online" and not self.is_reachable:
            raise ConnectionError("no network")
        self.settings.append(settings)
        return self

    def define_metric(self, name: str, *, step_metric: str | None = None) -> None:
        pass

    def log(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def finish(self) -> None:
        self.num_finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder(api_key="secret")
    module = ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    for name in ("init", "api", "errors"):
        setattr(module, name, getattr(recorder, name))
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return recorder


def test_numbers_are_named_by_kind_and_the_rest_is_left_out() -> None:
    record = {"kind": "eval", "stage": 1, "step": 3, "top1": 71, "against": {"low": 1.5, "curve": "deit3"}}
    assert numbers(record) == {"eval/top1": 71.0, "eval/against/low": 1.5}


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"^run.trackers={name} needs a package: pip install 'vitrail\[{name}\]'$"):
        run_in(tmp_path / "run", f"run.trackers=[{name}]")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_sends_every_record_and_stays_one_run_when_it_goes_on(tmp_path: Path, wandb: Recorder) -> None:
    folder = tmp_path / "my runs" / "first"
    run = run_in(folder, "run.trackers=[wandb]", "epochs=1")
    expected = [{"step": record["step"], **numbers(record)} for record in run.read_metrics()]
    assert wandb.records == expected
    assert any("eval/top1" in record for record in expected)
    assert wandb.num_finished == 1
    run_in(folder, "run.trackers=[wandb]", "epochs=1")
    first, second = wandb.settings
    assert first["id"] == second["id"]
    assert [first[name] for name in ("project", "name", "mode", "resume")] == ["my-runs", "first", "online", "allow"]
    assert first["config"]["image_size"] == 16


def test_a_later_stage_has_names_of_its_own(tmp_path: Path, wandb: Recorder) -> None:
    with open_trackers(tiny_recipe("run.trackers=[wandb]"), RunFolder(tmp_path), stage=0, step=0) as trackers:
        trackers.log(TRAIN)
        trackers.log({**TRAIN, "stage": 1})
    assert wandb.records[0] == {"step": 3, "train/epoch": 1.0, "train/loss": 2.5}
    assert wandb.records[1] == {"step": 3, "stage_1/train/epoch": 1.0, "stage_1/train/loss": 2.5}


@pytest.mark.parametrize(("key", "is_reachable"), [(None, True), ("secret", False)])
def test_without_key_or_network_metrics_stay_in_the_folder(
    tmp_path: Path, wandb: Recorder, key: str | None, is_reachable: bool
) -> None:
    wandb.api.api_key, wandb.is_reachable = key, is_reachable
    with open_trackers(tiny_recipe("run.trackers=[wandb]"), RunFolder(tmp_path), stage=0, step=0):
        pass
    assert [settings["mode"] for settings in wandb.settings] == ["offline"]


def test_tensorboard_shows_each_step_once_though_a_run_went_back(tmp_path: Path) -> None:
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name, reason="needs the extra tensorboard")
    recipe = tiny_recipe("run.trackers=[tensorboard]")
    for begun, steps in ((0, (1, 2, 3)), (1, (2, 3, 4))):  # killed after step 3, with a checkpoint of step 1
        with open_trackers(recipe, RunFolder(tmp_path), stage=0, step=begun) as trackers:
            for step in steps:
                trackers.log({**TRAIN, "step": step, "loss": float(10 * begun + step)})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "stage_0"))
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == {1: 1.0, 2: 12.0, 3: 13.0, 4: 14.0}
    assert len(events.Scalars("train/loss")) == 4
