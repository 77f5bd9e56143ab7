"""A run whose folder is moved, deleted or replaced at any moment ends with one line, and makes nothing anew."""

import random
import shutil
import time
from pathlib import Path

from tiny_runs import start

from torture.kills import MARKS, read, wait_for

AREA = "lost_folders"
NUM_TESTED = 1


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Lose the folder of a run some time after it has begun."""
    run, elsewhere = folder / "run", folder / "elsewhere"
    what, mark, pause = rng.choice(("moved", "deleted", "replaced")), rng.choice(MARKS[1:-1]), rng.uniform(0.0, 1.0)
    process = start(run, "epochs=60", "run.save_minutes=0.0001", f"workers={rng.choice((0, 0, 2))}")
    wait_for(run / mark, process)
    time.sleep(pause)
    try:
        run.rename(elsewhere)
    except FileNotFoundError:
        return f"the run left no folder: {read(process)}"
    if what == "deleted":
        shutil.rmtree(elsewhere, ignore_errors=True)  # a file that is written meanwhile may stay
        shutil.rmtree(elsewhere, ignore_errors=True)
    if what == "replaced":
        run.mkdir()
        (run / "recipe.yaml").write_text("name: another\n")
        (run / ".lock").write_bytes(b"another")
    said = read(process)
    place = f"{what} {pause:.2f} s after {mark}"
    if process.returncode == 0 and (elsewhere / "model").is_dir():
        return None  # it was done by then
    if process.returncode != 2 or "Traceback" in said:
        return f"{place}: exit code {process.returncode}: {said}"
    if "was moved, deleted or replaced while its run went on" not in said.splitlines()[-1]:
        return f"{place}: it said {said}"
    if what == "replaced" and sorted(path.name for path in run.iterdir()) != [".lock", "recipe.yaml"]:
        return f"{place}: {sorted(path.name for path in run.iterdir())} is in the folder that took its place"
    if what != "replaced" and run.exists():
        return f"{place}: the folder was made anew with {sorted(path.name for path in run.iterdir())}"
    return None
