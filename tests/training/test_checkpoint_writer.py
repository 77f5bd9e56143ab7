"""Checkpoints that are written while the run goes on."""

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import finish, run_in, start, wait_for_step

import vitrail
from vitrail.training.loop.interruption import Interrupted, StopSignal
from vitrail.training.runs.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from vitrail.training.runs.checkpoint_writer import CheckpointWriter, copy_state
from vitrail.training.runs.run_folder import RunFolder


class SlowDisk:
    """torch.save that waits until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.began = threading.Event(), threading.Event()
        save = torch.save

        def wait(state: Any, file: Any) -> None:
            self.began.set()
            assert self.may_write.wait(60)
            save(state, file)

        monkeypatch.setattr(torch, "save", wait)


def test_a_save_waits_for_a_copy_and_not_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    weights = torch.arange(4.0)
    with CheckpointWriter(Checkpoints(tmp_path)) as writer:
        writer.save({"weights": weights}, step=1, is_best=True)
        assert disk.began.wait(60)
        weights.add_(100)  # the next step
        writer.check()
        assert not list(tmp_path.glob("*.pt")), "nothing has a name before it is whole"
        disk.may_write.set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "step_000000001.pt"]
    assert load_checkpoint(tmp_path / "best.pt")["weights"].tolist() == [0, 1, 2, 3]


def test_an_error_of_the_run_waits_for_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    threading.Timer(0.2, disk.may_write.set).start()

    def fail() -> None:
        with CheckpointWriter(Checkpoints(tmp_path)) as writer:
            writer.save({"step": 1}, step=1, is_best=False)
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        fail()
    assert load_checkpoint(tmp_path / "step_000000001.pt") == {"step": 1}


def test_a_write_that_fails_is_told_once_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CheckpointWriter(Checkpoints(tmp_path))
    writer.save({"step": 1}, step=1, is_best=False)
    writer.wait()

    def refuse(state: Any, file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", refuse)
    writer.save({"step": 2}, step=2, is_best=False)
    with pytest.raises(CheckpointError, match=r"000002.pt could not be written \(No space left on device\)") as caught:
        writer.wait()
    assert "the checkpoint of step 1 is kept" in str(caught.value)
    assert "\n" not in str(caught.value)
    writer.check()


def test_a_run_whose_disk_fills_up_ends_with_one_line_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, writes = torch.save, []

    def refuse(state: Any, file: Any) -> None:
        writes.append(state["step"])
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    with monkeypatch.context() as full:
        full.setattr(torch, "save", refuse)
        with pytest.raises(CheckpointError, match="the checkpoint of step 3 is kept"):
            run_in(tmp_path / "run")
    run_in(tmp_path / "run")
    run_in(tmp_path / "whole")
    one, other = (vitrail.load_model(tmp_path / name / "model").state_dict() for name in ("run", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_tensors_that_are_one_stay_one_in_the_copy() -> None:
    tied = torch.ones(3)
    copy = copy_state({"a": tied, "b": [tied, (tied.view(3), 1)], "c": tied[:2], "empty": torch.zeros(0)})
    assert copy["a"] is copy["b"][0]
    assert copy["a"].data_ptr() != tied.data_ptr()
    assert copy["c"].tolist() == [1, 1]


def test_sigterm_saves_at_once_and_the_exit_code_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, "epochs=40", "run.save_minutes=0.0001")
    wait_for_step(process, folder, 2)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # schedulers send several
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 85, output
    assert f"stopped and saved; to go on: vitrail train out={folder}" in output
    assert "Traceback" not in output
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None


def test_a_signal_in_an_evaluation_leaves_it_to_the_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.tasks.classify.evaluator import ClassificationEvaluator

    measure = ClassificationEvaluator.measure
    calls = 0

    def stopped(self: Any, model: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from measure(self, model)

    monkeypatch.setattr(ClassificationEvaluator, "measure", stopped)
    with pytest.raises(Interrupted) as caught:
        run_in(tmp_path / "run")
    assert caught.value.is_terminated
    newest = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert load_checkpoint(newest)["step"] == 6
    assert not load_checkpoint(newest)["is_evaluated"]
    resumed, whole = run_in(tmp_path / "run"), run_in(tmp_path / "whole")

    def evaluations(run: RunFolder) -> list[Any]:
        return [(record["step"], record["top1"]) for record in run.read_metrics() if "top1" in record]

    assert evaluations(resumed) == evaluations(whole)
    one, other = (vitrail.load_model(run.model).state_dict() for run in (resumed, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_second_ctrl_c_stops_at_once_and_a_second_sigterm_changes_nothing() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
        assert stop.is_terminated
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("delay", [0.02])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, delay: float) -> None:
    killed = tmp_path / "killed"
    process = start(killed, "epochs=4", "run.save_minutes=0.00001")
    wait_for_step(process, killed, 3)
    threading.Event().wait(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert Checkpoints(killed / "checkpoints").newest() is not None
    finish(start(killed, "epochs=4", "run.save_minutes=0.00001"))
    run_in(tmp_path / "whole", "epochs=4")
    one, other = (vitrail.load_model(tmp_path / name / "model").state_dict() for name in ("killed", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)
