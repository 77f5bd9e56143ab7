"""What a run says while it goes: a bar on a terminal, plain lines elsewhere; and how fast it is."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn
from rich.progress import Progress as Bars
from rich.progress import Task as Bar
from rich.table import Column
from rich.text import Text

from vitrail.pages.terminal import can_draw_bars
from vitrail.tasks.results import Measure

Item = TypeVar("Item")
_LOGGER = logging.getLogger(__name__)
_METRIC_SECONDS = 2.0  # between two lines of metrics
_LINE_SECONDS = 30.0  # between two plain lines
_NUM_MEASURES = 3  # of an evaluation, in its line
_NOTABLE_WAIT = 0.05  # share of the time; less of it says nothing
_LEAST_BAR = 8  # columns


class Progress:
    """Counts samples and waiting, and shows them. Of several processes only the main one shows anything."""

    def __init__(self, *, is_shown: bool, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.is_shown = is_shown
        self._bars: Bars | None = None
        self._course = _Course(total=0, epochs=0.0, begun_at=0, since=0.0)
        self._line_at = 0.0
        self._reset()
        self._started = time.monotonic()
        self._counted = "images"

    def _reset(self) -> None:
        self._since, self._samples, self._waited = time.monotonic(), 0, 0.0

    @contextlib.contextmanager
    def stage(
        self, name: str, *, total: int, completed: int, epochs: float, counted: str = "images"
    ) -> Iterator[None]:
        """Show the steps of a stage inside the block, of which some may be done; it has so many epochs.

        `counted` is what its samples are called.
        """
        self._reset()
        self._counted = counted
        self._course = _Course(total=total, epochs=epochs, begun_at=completed, since=time.monotonic())
        if not (self.is_shown and can_draw_bars(self.console)):
            yield
            return
        columns = (BarColumn(bar_width=None), _Figures(self.console))
        with Bars(*columns, console=self.console, expand=True) as bars:
            self._bars = bars
            self._task = bars.add_task(name, total=total, completed=completed, notes=())
            try:
                yield
            finally:
                self._bars = None

    def waiting(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Pass batches through and count the time that they are waited for."""
        iterator = iter(batches)
        while True:
            start = time.monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waited += time.monotonic() - start
            yield batch

    def note_step(self, step: int, *, num_samples: int) -> None:
        """Count a step that was made."""
        self._samples += num_samples
        if self._bars is not None:
            self._bars.update(self._task, completed=step)

    @property
    def is_time_for_metrics(self) -> bool:
        """Whether metrics were last written down a while ago."""
        return time.monotonic() - self._since > _METRIC_SECONDS

    def speed(self) -> dict[str, float]:
        """Images, or what else is counted, a second and the share of time spent waiting, since the last call; and the time of the run."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        speed = {
            f"{self._counted}_per_second": round(self._samples / seconds, 2),
            "data_wait": round(min(1.0, self._waited / seconds), 4),
            "seconds": round(time.monotonic() - self._started, 3),
        }
        self._reset()
        return speed

    def show_step(self, record: Mapping[str, Any]) -> None:
        """Show how far the stage is, the loss, the speed and the time that is left."""
        course, wait = self._course, record["data_wait"]
        notes = (
            _Note(f"epoch {record['epoch']:.2f}/{course.epochs:g}", rank=1),
            _Note(f"loss {record['loss']:.3f}", rank=2),
            _Note(f"{record[f'{self._counted}_per_second']:.0f} {self._counted}/s", rank=3),
            *([_Note(f"waiting for data {wait:.0%}", rank=4)] if wait >= _NOTABLE_WAIT else ()),
            _Note(course.describe_rest(record["step"]), rank=0),
        )
        if self._bars is not None:
            self._bars.update(self._task, notes=notes)
        elif self.is_shown and time.monotonic() - self._line_at > _LINE_SECONDS:
            self._line_at = time.monotonic()
            first, *others = (note.text for note in notes)
            self.say("  ".join((first, f"step {record['step']}/{course.total}", *others)))

    def evaluating(self, batches: Iterable[Item], total: int) -> Iterator[Item]:
        """Pass batches of an evaluation through; its time is none of the training's speed."""
        start = time.monotonic()
        task = self._bars.add_task("evaluate", total=total, notes=()) if self._bars else None
        for batch in batches:
            yield batch
            if self._bars is not None and task is not None:
                self._bars.advance(task)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)
        self._since += time.monotonic() - start

    @contextlib.contextmanager
    def counting(self, name: str, *, total: int) -> Iterator[Callable[[int], object]]:
        """Show a bar for something that a run does before its first step; the function adds to it."""
        is_shown = self.is_shown and can_draw_bars(self.console)
        with Bars(console=self.console, transient=True, disable=not is_shown) as bars:
            task = bars.add_task(escape(name), total=total)
            yield lambda count: bars.advance(task, count)

    def show_evaluation(self, record: Mapping[str, Any], measures: Sequence[Measure]) -> None:
        """Show the first measures that the evaluation has."""
        found = [measure for measure in measures if measure.key in record][:_NUM_MEASURES]
        numbers = "  ".join(f"{measure.label} {measure.show(record[measure.key])}" for measure in found)
        course = self._course
        rest = "" if self._bars is not None else f"  {course.describe_rest(record['step'])}"
        self.say(f"epoch {record['epoch']:.4g}/{course.epochs:g}: {numbers}{rest}")

    @contextlib.contextmanager
    def showing_warnings(self) -> Iterator[None]:
        """Show the package's warnings inside the block, above the bar; of several processes only the main one's."""
        handler = _Warnings(self.console) if self.is_shown else logging.NullHandler()
        logger = logging.getLogger("vitrail")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def say(self, text: str) -> None:
        """Print a line that stays, in the log as well."""
        _LOGGER.info(text)
        if self.is_shown:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class _Course:
    """The steps of a stage, and how fast they have been made since it began here."""

    total: int
    epochs: float
    begun_at: int  # step
    since: float

    def describe_rest(self, step: int) -> str:
        """The time that is left, evaluations included, if the rest is as fast as what was done."""
        if step <= self.begun_at:
            return ""
        seconds = (time.monotonic() - self.since) / (step - self.begun_at) * (self.total - step)
        return f"{timedelta(seconds=round(seconds))} left"


class _Note(NamedTuple):
    """A figure beside a bar; where there is no room, those of higher rank go first."""

    text: str
    rank: int


class _Figures(ProgressColumn):
    """What stands beside a bar: as many of its figures as leave it some room."""

    def __init__(self, console: Console) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self.console = console

    def render(self, task: Bar) -> Text:
        """The figures as plain text, in which no sign means anything."""
        counts = _Note(f"{task.completed:.0f}/{task.total or 0:.0f}", rank=0)
        notes = [_Note(task.description, rank=5), counts, *task.fields["notes"]]
        room = self.console.width - _LEAST_BAR - 1
        for rank in (5, 4, 3, 2, 1):
            if len(_joined(notes)) > room:
                notes = [note for note in notes if note.rank != rank]
        return Text(_joined(notes))


def _joined(notes: Iterable[_Note]) -> str:
    return "  ".join(note.text for note in notes if note.text)


class _Warnings(logging.Handler):
    """Warnings as lines of a console; a traceback is for the log."""

    def __init__(self, console: Console) -> None:
        super().__init__(level=logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning."""
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
