"""Ctrl-C saves first, and the run goes on as if nothing had happened; processes share the work exactly."""

import contextlib
import signal
from pathlib import Path

import pytest
import torch
from tiny_runs import finish, run_in, run_two, start, start_two, wait_for_step
from warm import WarmProcess

import vitrail
from vitrail.training.runs.checkpoint import Checkpoints
from vitrail.training.runs.run_folder import RunFolder


def assert_same_model(first: Path, second: Path) -> None:
    one, other = (vitrail.load_model(folder / "model").state_dict() for folder in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = ("epochs=6", "run.save_minutes=0.0001")
    stopped = tmp_path / "stopped"
    process = start(stopped, *words)
    wait_for_step(process, stopped, 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"stopped and saved; to go on: vitrail train out={stopped}" in output
    assert "Traceback" not in output
    finish(WarmProcess(["train", f"out={stopped}"]))
    run_in(tmp_path / "whole", "epochs=6")
    assert_same_model(stopped, tmp_path / "whole")


def test_two_processes_give_the_losses_of_one_and_a_run_may_change_their_number(tmp_path: Path) -> None:
    words = ("data=shapes:size=16,count=48,val=25",)
    run_two(tmp_path / "two", *words)
    one = run_in(tmp_path / "one", *words)

    def numbers(run: RunFolder, name: str) -> dict[int, float]:
        return {record["step"]: record[name] for record in run.read_metrics() if name in record}

    two = RunFolder(tmp_path / "two")
    first, second = numbers(one, "loss"), numbers(two, "loss")
    common = sorted(first.keys() & second.keys())  # a slow run writes down more of its steps
    assert {1, max(first)} <= set(common)
    assert [second[step] for step in common] == pytest.approx([first[step] for step in common], rel=1e-5)
    assert numbers(two, "top1") == pytest.approx(numbers(one, "top1"), abs=1e-9)
    assert set(numbers(two, "count").values()) == {25}


def test_machines_come_and_go(tmp_path: Path) -> None:
    words = ("data=shapes:size=16,count=48,val=25", "epochs=12", "evaluation.every=6")
    stopped = tmp_path / "stopped"
    often = "run.save_minutes=0.0001"
    for machines in (2, 2, 1):
        [*_, before] = [0, *Checkpoints(stopped / "checkpoints").steps()]
        if machines == 2:
            processes = start_two(stopped, *words, often, "run.sharding=full")
        else:
            processes = [start(stopped, *words, often)]
        wait_for_step(processes[0], stopped, before + 1)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it stops when another was told to
                process.send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=300)[0] for process in processes]
        assert processes[0].returncode == 85, "".join(said)
        assert {process.returncode for process in processes} <= {85, 130}, "".join(said)
    assert Checkpoints(stopped / "checkpoints").steps()[-1] < 36
    run_two(stopped, *words)
    whole = run_in(tmp_path / "whole", *words)
    resumed, straight = (vitrail.load_model(run.model).state_dict() for run in (RunFolder(stopped), whole))
    assert all(torch.allclose(resumed[name], straight[name], atol=1e-4) for name in straight)
