"""launcher=slurm: what is handed to Slurm, and a job that saves, stops and goes on."""

import os
import pickle
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run_in, tiny_recipe

import vitrail
from vitrail.cli import main
from vitrail.settings.launching import take_launcher
from vitrail.settings.text import write_yaml
from vitrail.training.parallel.scheduled import TrainingJob
from vitrail.training.runs.checkpoint import Checkpoints

submitit = pytest.importorskip("submitit", reason="needs the extra slurm")


def write_recipe(folder: Path, *words: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(write_yaml(tiny_recipe("run.threads=1", *words)))
    return path


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that stand for Slurm's: submitting keeps the script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", "exit 0"), ("sbatch", f'cp "$1" {tmp_path}/script; echo Submitted batch job 42')):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "script"


def test_a_job_of_slurm_is_signalled_before_its_end_and_may_be_queued_again(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path)
    words = ["launcher=slurm", "slurm.partition=gpu", "slurm.minutes=90", "slurm.account=123", "slurm.save_seconds=200"]
    out = tmp_path / "run"
    assert main(["train", str(recipe), f"out={out}", *words, "devices=8", "nodes=2", "run.device=auto"]) == 0
    said = capsys.readouterr().out
    assert f"job 42 trains into {out}" in said
    assert "scancel 42 ends it" in said
    script = slurm.read_text()
    for line in (
        *("--partition=gpu", "--time=90", "--account=123", "--signal=USR2@200", "--nodes=2", "--requeue"),
        *("--ntasks-per-node=1", "--gpus-per-node=8"),
    ):
        assert f"#SBATCH {line}" in script
    assert "--kill-on-bad-exit=1" in script
    assert not out.exists(), "the run begins when the job does"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launcher=pbs"], "launcher cannot be 'pbs': it is one of here, slurm, local"),
        (["slurm.partition=gpu"], "slurm.partition is given without launcher=slurm"),
        (["launcher=slurm", "slurm.partiton=gpu"], "unknown key slurm.partiton; there are: slurm.partition"),
        (["launcher=slurm", "slurm.minutes=0"], "slurm.minutes cannot be 0: input should be greater than 0"),
        (["launcher=slurm"], "there is no srun here"),
        (["launcher=slurm", "epochs=+3"], "epochs"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["train", str(write_recipe(tmp_path)), f"out={tmp_path / 'run'}", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_words_of_the_launcher_are_no_settings_of_the_run() -> None:
    launcher, job, words = take_launcher(["small", "lr=1e-3", "launcher=slurm", "slurm.cpus=8"])
    assert (launcher, job.cpus, words) == ("slurm", 8, ["small", "lr=1e-3"])


def test_a_job_whose_time_is_up_saves_and_the_next_one_goes_on(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path, "epochs=4", "run.save_minutes=0.0001"), tmp_path / "run"
    job = pickle.loads(pickle.dumps(TrainingJob(["train", str(recipe), f"out={out}"], folder=tmp_path)))
    queued: list[Any] = []

    def tell() -> None:
        while not Checkpoints(out / "checkpoints").steps():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, lambda *_: queued.append(job.checkpoint()))  # as submitit does
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        with pytest.raises(SystemExit) as caught:
            job()
    finally:
        thread.join(60)
        signal.signal(signal.SIGUSR2, before)
    assert caught.value.code == 85
    assert not (out / "model").exists()
    [again] = queued
    assert (again.function.words, again.function.folder) == (job.words, job.folder)
    assert main(job.words) == 0  # which is what the next job starts, as this one did
    run_in(tmp_path / "whole", "epochs=4")
    one, other = (vitrail.load_model(tmp_path / name / "model").state_dict() for name in ("run", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_job_runs_through_submitit_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", str(write_recipe(tmp_path, "epochs=1")), f"out={out}", "launcher=local"]) == 0
    assert (out / "model").is_dir()
    assert "trains into" in capsys.readouterr().out
