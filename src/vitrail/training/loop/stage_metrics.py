"""What a stage writes down of its steps and evaluations: lines of metrics, for people, trackers and the report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.tasks.results import Measure
from vitrail.training.loop.surroundings import Surroundings
from vitrail.training.runs.reference_curves import ReferenceCurve, compare


@dataclass(frozen=True, eq=False)
class StageMetrics:
    """The writer of a stage's lines of metrics."""

    number: int  # of the stage
    around: Surroundings
    curve: ReferenceCurve | None  # the published course to compare with

    def note_step(self, record: Mapping[str, Any], *, step: int, epoch: float) -> None:
        """Write down what the steps of the last seconds were like."""
        line = {**self._place("train", step=step, epoch=epoch), **record, **self.around.progress.speed()}
        self._write(line)
        self.around.progress.show_step(line)

    def note_evaluation(
        self,
        results: Mapping[str, float],
        *,
        step: int,
        epoch: float,
        epochs: float,
        measures: tuple[Measure, ...],
        notes: Iterable[Mapping[str, Any]],
    ) -> None:
        """Write down what an evaluation gave, where it lies beside the published curve, and what the task notes.

        `epochs` are those of the whole stage.
        """
        for note in notes:
            self.around.folder.append_metrics({**self._place("note", step=step, epoch=epoch), **note})
        line = {**self._place("eval", step=step, epoch=epoch), **results}
        verdict = None
        if self.curve is not None:
            verdict = compare(self.curve, epoch, results[measures[0].key], epochs=epochs)
            line["against"] = verdict.as_record()
        self._write(line)
        self.around.progress.show_evaluation(line, measures)
        if verdict is not None:
            self.around.progress.say(verdict.describe())

    def _place(self, kind: str, *, step: int, epoch: float) -> dict[str, Any]:
        """How a line begins."""
        return {"kind": kind, "stage": self.number, "step": step, "epoch": round(epoch, 4)}

    def _write(self, line: dict[str, Any]) -> None:
        self.around.folder.append_metrics(line)
        self.around.trackers.log(line)
