"""A run that is killed at any moment goes on by the same command, at once, and ends with the same bits."""

import functools
import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from tiny_runs import run_in, start

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
        process.send_signal(signal.SIGKILL)
        if process.wait() not in (0, -signal.SIGKILL):
            return f"{words[-1]}, killed {', then '.join(killed_at)}: the same command said {read(process)}"
        assert process.stdout is not None
        process.stdout.close()
        killed_at.append(f"{pause:.2f} s after {mark or 'the start'}")
    process = start(run, *words)
    said = read(process)
    place = f"{words[-1]}, killed {', then '.join(killed_at)}"
    if process.returncode != 0:
        return f"{place}: the same command gave {process.returncode}: {said}"
    if left := [str(path.relative_to(run)) for path in run.rglob("*.partial")]:
        return f"{place}: {', '.join(left)} is left"
    if _content(run / "model" / "model.safetensors") != _uninterrupted():
        return f"{place}: the model is another than that of an uninterrupted run"
    records = [(record["kind"], record["step"]) for record in RunFolder(run).read_metrics()]
    if len(set(records)) != len(records) or records != sorted(records, key=lambda record: record[1]):
        return f"{place}: metrics are not in order, or there twice: {records}"
    return None


_COMMON = ("epochs=6", "run.save_minutes=0.0001")


@functools.cache
def _uninterrupted() -> tuple[object, bytes]:
    """The weights of a run that nothing happened to."""
    torch.set_num_threads(1)  # as in the processes that `start` begins
    with tempfile.TemporaryDirectory() as place:
        return _content(run_in(Path(place) / "run", *_COMMON).model / "model.safetensors")


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    """Until a path exists or the process has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.002)


def read(process: "subprocess.Popen[str]") -> str:
    """What a process says until its end; it is killed where that does not come."""
    try:
        return process.communicate(timeout=_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return f"it did not end in {_SECONDS:g} s: {process.communicate()[0]}"


def _content(path: Path) -> tuple[object, bytes]:
    """The header of a file of safetensors, whatever its order, and the bytes of its tensors."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]
