"""Checkpoints that are whole archives and lack a part, or have one that is wrong: one line that names the file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run_in

from vitrail.cli import main
from vitrail.training.runs.checkpoint import load_run_state

KEYS = ("stage", "step", "data", "model", "optimizer", "average", "scaler", "objective", "best", "num_skipped")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has half of its way to go."""
    run = run_in(
        tmp_path_factory.mktemp("stopped") / "run",
        *("model=deit_tiny", "model.settings={patch_size: 8, dim: 8, depth: 1, num_heads: 2}", "epochs=2"),
    )
    shutil.rmtree(run.model)
    (run.checkpoints / "step_000000006.pt").unlink()
    return run.path


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def spoil(run: Path, key: str, value: Any) -> Path:
    """Give a part of the checkpoint, by its keys with / between them, another value; `...` takes it away."""
    (file,) = (run / "checkpoints").glob("step_*.pt")
    state = place = torch.load(file, weights_only=True)
    *outer, last = key.split("/")
    for name in outer:
        place = place[int(name) if name.isdigit() else name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    torch.save(state, file)
    return file


@pytest.mark.parametrize("key", KEYS)
def test_every_part_must_be_there_and_of_its_type(run: Path, key: str) -> None:
    file = spoil(run, key, ...)
    with pytest.raises(ValueError, match=rf"{file.name}: not a checkpoint of this run \(it has no {key}\): delete it"):
        load_run_state(file, num_stages=1)
    spoil(run, key, "x")
    with pytest.raises(ValueError, match=rf"\(its {key} is a str\): delete it"):
        load_run_state(file, num_stages=1)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("stage", 7, "it is of stage 7 and the recipe has 1, counted from 0"),
        ("step", 5, "it is of step 5 of stage 0, and its name of another"),
        ("model/norm.weight", ..., 'Missing key(s) in state_dict: "norm.weight"'),
        ("model/norm.weight", torch.zeros(2), "size mismatch for norm.weight"),
        ("optimizer/param_groups", [], "different number of parameter groups"),
        ("optimizer/state/0/exp_avg", ..., "KeyError 'exp_avg'"),
        (
            "optimizer/state/0/exp_avg",
            torch.zeros(3),
            "exp_avg of parameter 0 of the optimizer is [3], not of its shape",
        ),
        ("average/weights", {}, "the moving average is of another model"),
        ("average/num_updates", "x", "num_updates of the moving average is no count"),
        ("best/epoch", ..., "its best has no value and epoch"),
    ],
)
def test_a_run_does_not_go_on_from_wrong_parts(
    run: Path, key: str, value: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spoil(run, key, value)
    assert main(["train", f"out={run}"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitrail: error")]
    assert len(told) == 1
    assert file.name in told[0]
    assert reason in told[0]
    assert not (run / "model").exists()


@pytest.mark.parametrize("value", ["x", 0, -3, 2.5, True, None, [8]])
def test_a_plan_with_a_wrong_micro_batch_is_named(run: Path, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "plan.json").write_text(json.dumps({"micro_batch_0": value}))
    assert main(["train", f"out={run}"]) == 2
    assert "plan.json: micro_batch_0 must be a whole number of at least 1, not" in capsys.readouterr().err
