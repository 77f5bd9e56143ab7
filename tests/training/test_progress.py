"""What a run says while it goes: a bar that fits a terminal of 80 columns, and lines with totals elsewhere."""

import io
import re

import pytest
from rich.console import Console

from vitrail.tasks.results import Measure
from vitrail.training.runs import progress as progress_module
from vitrail.training.runs.progress import Progress

RECORD = {"epoch": 2.34, "step": 30_420, "loss": 1.6140, "images_per_second": 522.4, "data_wait": 0.12}
MEASURES = (Measure("top1", "top-1"),)


def frames(*, width: int, name: str = "patchconvnet_s120", **changes: float) -> list[str]:
    """What a terminal has shown of a stage of 18 epochs, line by line."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, legacy_windows=False)
    progress = Progress(is_shown=True, console=console)
    with progress.stage(name, total=234_000, completed=30_000, epochs=18.0):
        progress.note_step(30_420, num_samples=16)
        progress.show_step({**RECORD, **changes})
        for _ in progress.evaluating([1, 2], total=2):
            pass
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_a_bar_fits_80_columns_with_its_steps_and_the_time_that_is_left() -> None:
    lines = frames(width=80)
    last = lines[-1]
    assert all(len(line) <= 80 for line in lines), lines
    assert "30420/234000  epoch 2.34/18  loss 1.614" in last
    assert re.search(r"\d:\d\d:\d\d left$", last)
    assert "━" * 8 in last
    assert "…" not in last


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_what_has_no_room_is_left_out_whole(width: int) -> None:
    last = frames(width=width)[-1]
    assert len(last) <= width
    assert "30420/234000" in last
    assert last.endswith("left")
    assert ("patchconvnet_s120" in last, "522 images/s" in last, "waiting for data 12%" in last) == (
        width >= 120,
        width >= 80,
        width >= 120,
    )


def test_no_sign_of_a_name_is_markup() -> None:
    for line in frames(width=200, name="[bold]mine[/x]"):
        assert "[bold]mine[/x]" in line or "evaluate" in line


def test_lines_of_a_log_have_totals_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000_000, 100))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: float(next(clock)))
    file = io.StringIO()
    progress = Progress(is_shown=True, console=Console(file=file, width=80))
    with progress.stage("cait_xxs24", total=1800, completed=300, epochs=18.0):
        progress.show_step({**RECORD, "epoch": 4.0, "step": 400})
        progress.show_evaluation({"epoch": 4.0, "step": 400, "top1": 81.25}, MEASURES)
    first, second = file.getvalue().splitlines()
    assert re.fullmatch(
        r"epoch 4\.00/18  step 400/1800  loss 1\.614  522 images/s  waiting for data 12%  \d+:\d\d:\d\d left", first
    )
    assert re.fullmatch(r"epoch 4/18: top-1 81\.2\d? %  \d+:\d\d:\d\d left", second)


def test_the_time_that_is_left_follows_what_was_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    course = progress_module._Course(total=1000, epochs=10.0, begun_at=400, since=0.0)
    assert course.describe_rest(400) == ""
    now = 50.0  # seconds for the first 100 steps here
    assert course.describe_rest(500) == "0:04:10 left"
    assert course.describe_rest(1000) == "0:00:00 left"
