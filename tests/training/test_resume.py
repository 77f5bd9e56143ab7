"""A run that was killed goes on as if nothing had happened; Ctrl-C saves first; processes share the work exactly."""

import os
import random
import signal
from pathlib import Path

import pytest
import torch
from tiny_runs import finish, run_in, run_two, start, wait_for_step
from warm import WarmProcess

import vitrail
from vitrail.training.runs.run_folder import RunFolder


def assert_same_model(first: Path, second: Path) -> None:
    one, other = (vitrail.load_model(folder / "model").state_dict() for folder in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_killed_at_a_random_step_ends_with_the_same_bits(tmp_path: Path, num_workers: int) -> None:
    words = ("epochs=8", f"workers={num_workers}", "run.save_minutes=0.0001")
    killed = tmp_path / "killed"
    seed = int(os.environ.get("VITRAIL_KILL_SEED") or random.SystemRandom().randrange(10**6))
    step = random.Random(seed).randrange(2, 20)
    print(f"killed at step {step}; again with VITRAIL_KILL_SEED={seed}")  # pytest shows it where the test fails
    process = start(killed, *words)
    wait_for_step(process, killed, step)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "model").exists()
    finish(start(killed, *words))
    run_in(tmp_path / "whole", "epochs=8")
    assert_same_model(killed, tmp_path / "whole")
    steps = [(record["kind"], record["step"]) for record in RunFolder(killed).read_metrics()]
    assert len(set(steps)) == len(steps)
    assert steps == sorted(steps, key=lambda step: step[1])


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = ("epochs=12", "run.save_minutes=0.0001")
    stopped = tmp_path / "stopped"
    process = start(stopped, *words)
    wait_for_step(process, stopped, 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped and saved; to go on: vitrail train out={stopped}" in output
    assert "Traceback" not in output
    finish(WarmProcess(["train", f"out={stopped}"]))
    run_in(tmp_path / "whole", "epochs=12")
    assert_same_model(stopped, tmp_path / "whole")


def test_two_processes_give_the_losses_of_one_and_a_run_may_change_their_number(tmp_path: Path) -> None:
    # Dropped paths are drawn by each process for its own images.
    words = ("regularisation.drop_path=0", "data=shapes:size=16,count=48,val=25")
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

    stopped = tmp_path / "stopped"
    process = start(stopped, *words, "epochs=6", "run.save_minutes=0.0001", devices=2)
    wait_for_step(process, stopped, 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    finish(start(stopped, *words, "epochs=6"))
    whole = run_in(tmp_path / "whole", *words, "epochs=6")
    resumed, straight = (vitrail.load_model(run.model).state_dict() for run in (RunFolder(stopped), whole))
    assert all(torch.allclose(resumed[name], straight[name], atol=1e-4) for name in straight)


def test_a_folder_in_use_is_not_written_to_by_a_second_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, "epochs=200", "run.save_minutes=0.0001")
    wait_for_step(process, folder, 1)
    second = start(folder, "epochs=200", "run.save_minutes=0.0001")
    output, _ = second.communicate(timeout=60)
    process.kill()
    process.communicate()
    assert second.returncode == 2
    assert f"{folder} is in use by another process" in output
