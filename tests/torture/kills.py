"""A run that is killed at any moment goes on by the same command, at once, and ends with the same bits."""

import functools
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from tiny_runs import run_in, start
from warm import WarmProcess

from vitrail.training.runs.run_folder import RunFolder

AREA = "kills"
NUM_TESTED = 1
_SECONDS = 300.0  # that a process of a few seconds may take on a busy machine
# What a run leaves first, then next, ...: it is killed some time after one of them is there.
MARKS = ("", "recipe.yaml", "task.json", "metrics.jsonl", "checkpoints", "model")


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Kill a run one to three times, resume it at once each time, and compare its model with an uninterrupted run's."""
    run = folder / "run"
    words = (*_COMMON, f"workers={rng.choice((0, 2))}")
    killed_at: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        mark, pause = rng.choice(MARKS), rng.uniform(0.0, 1.0)
        process = start(run, *words)
        wait_for(run / mark if mark else folder, process)
        time.sleep(pause)
        if process.poll() is None:
            process.kill()
        said = read(process)
        if process.returncode not in (0, -signal.SIGKILL):
            return f"{words[-1]}, killed {', then '.join(killed_at)}: the same command said {said}"
        killed_at.append(f"{pause:.2f} s after {mark or 'the start'}")
    process = start(run, *words)
    said = read(process)
    place = f"{words[-1]}, killed {', then '.join(killed_at)}"
    if process.returncode != 0:
        return f"{place}: the same command gave {process.returncode}: {said}"
    if left := [str(path.relative_to(run)) for path in run.rglob("*.partial")]:
        return f"{place}: {', '.join(left)} is left"
    if (run / "model" / "model.safetensors").read_bytes() != _uninterrupted():
        return f"{place}: the model is another than that of an uninterrupted run"
    records = [(record["kind"], record["step"]) for record in RunFolder(run).read_metrics()]
    if len(set(records)) != len(records) or records != sorted(records, key=lambda record: record[1]):
        return f"{place}: metrics are not in order, or there twice: {records}"
    return None


_COMMON = ("epochs=6", "run.save_minutes=0.0001")


@functools.cache
def _uninterrupted() -> bytes:
    """The file of weights of a run that nothing happened to."""
    torch.set_num_threads(1)  # as in the processes that `start` begins
    with tempfile.TemporaryDirectory() as place:
        return (run_in(Path(place) / "run", *_COMMON).model / "model.safetensors").read_bytes()


def wait_for(path: Path, process: WarmProcess) -> None:
    """Until a path exists or the process has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.002)


def read(process: WarmProcess) -> str:
    """What a process says until its end; it is killed where that does not come."""
    try:
        return process.communicate(timeout=_SECONDS)[0]
    except subprocess.TimeoutExpired as error:
        return f"it did not end in {_SECONDS:g} s: {error.output}"
