"""What a run says while it goes: a bar on a terminal, plain lines elsewhere; and how fast it is."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from vitrail.pages.terminal import can_draw_bars
from vitrail.tasks.contract import Measure

Item = TypeVar("Item")
_LOGGER = logging.getLogger(__name__)
_METRIC_SECONDS = 2.0  # between two lines of metrics
_LINE_SECONDS = 30.0  # between two plain lines
_NUM_MEASURES = 3  # of an evaluation, in its line


class Progress:
    """Counts images and waiting, and shows them. Of several processes only the main one shows anything."""

    def __init__(self, *, is_shown: bool, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.is_shown = is_shown
        self._bars: Bars | None = None
        self._line_at = 0.0
        self._reset()
        self._started = time.monotonic()

    def _reset(self) -> None:
        self._since, self._samples, self._waited = time.monotonic(), 0, 0.0

    @contextlib.contextmanager
    def stage(self, name: str, *, total: int, completed: int) -> Iterator[None]:
        """Show the steps of a stage inside the block, of which some may be done."""
        self._reset()
        if not (self.is_shown and can_draw_bars(self.console)):
            yield
            return
        columns = ("[bold]{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[note]}")
        with Bars(*columns, TimeElapsedColumn(), "/", TimeRemainingColumn(), console=self.console) as bars:
            self._bars = bars
            self._task = bars.add_task(name, total=total, completed=completed, note="")
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
        """Images a second and the share of time spent waiting, since the last call; and the time of the run."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        speed = {
            "images_per_second": round(self._samples / seconds, 2),
            "data_wait": round(min(1.0, self._waited / seconds), 4),
            "seconds": round(time.monotonic() - self._started, 3),
        }
        self._reset()
        return speed

    def show_step(self, record: Mapping[str, Any]) -> None:
        """Show the loss and the speed."""
        note = (
            f"epoch {record['epoch']:.2f}  loss {record['loss']:.3f}  {record['images_per_second']:.0f} img/s"
            f"  waiting for data {record['data_wait']:.0%}"
        )
        if self._bars is not None:
            self._bars.update(self._task, note=note)
        elif self.is_shown and time.monotonic() - self._line_at > _LINE_SECONDS:
            self._line_at = time.monotonic()
            self.say(f"step {record['step']}  {note}")

    def evaluating(self, batches: Iterable[Item], total: int) -> Iterator[Item]:
        """Pass batches of an evaluation through; its time is none of the training's speed."""
        start = time.monotonic()
        task = self._bars.add_task("evaluate", total=total, note="") if self._bars else None
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
            task = bars.add_task(name, total=total)
            yield lambda count: bars.advance(task, count)

    def show_evaluation(self, record: Mapping[str, Any], measures: Sequence[Measure]) -> None:
        """Show the first measures that the evaluation has."""
        found = [measure for measure in measures if measure.key in record][:_NUM_MEASURES]
        numbers = "  ".join(f"{measure.label} {measure.show(record[measure.key])}" for measure in found)
        self.say(f"epoch {record['epoch']:.4g}: {numbers}")

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


class _Warnings(logging.Handler):
    """Warnings as lines of a console; a traceback is for the log."""

    def __init__(self, console: Console) -> None:
        super().__init__(level=logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning."""
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
