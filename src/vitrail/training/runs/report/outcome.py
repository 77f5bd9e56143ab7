"""How far a run has come, how well and how fast: the numbers that head its report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vitrail.pages.words import percent
from vitrail.tasks.results import Measure
from vitrail.training.runs.report.run_record import Line, RunRecord, number, stage_number
from vitrail.settings.text import stage_of

# Of the time of a step: below the first, waiting for data costs nothing one would notice; above the second it is what
# decides the speed.
_LITTLE_WAITING, _MUCH_WAITING = 0.05, 0.2
# A result this much worse than the best one is worth a word.
_NOTABLE_LOSS = 0.5
_SIDES = {"below": "below it", "above": "above it", "inside": "inside again"}


@dataclass(frozen=True)
class Outcome:
    """A run in numbers; not a number where nothing is known."""

    epochs: float  # done, over all stages
    planned_epochs: float
    seconds: float
    speed: float  # of the last stage: the median of what its task counts, a second
    counted: str
    data_wait: float  # share of the time in which the model waited for data, in the last stage
    device: str  # empty where nobody knows
    is_complete: bool
    measure: Measure  # what decides which evaluation is the best
    last: Line | None  # evaluation of the last stage
    best: Line | None  # of those of the last stage: stages may differ in their data
    epoch_of_best: float

    @property
    def has_fallen(self) -> bool:
        """Whether the last result is notably worse than the best."""
        last, best = number(self.last, self.measure.key), number(self.best, self.measure.key)
        return self.measure.is_better(best, last) and abs(best - last) > _NOTABLE_LOSS

    @property
    def verdict(self) -> str:
        """One line for a person."""
        done = "nothing is done yet" if math.isnan(self.epochs) else f"{describe_epochs(self)} are done"
        measure, value = self.measure, number(self.last, self.measure.key)
        if not math.isnan(value):
            best = measure.brief(number(self.best, measure.key))
            fallen = f", after {best} at epoch {self.epoch_of_best:.4g}"
            done += f": {measure.brief(value)} {measure.label}{fallen if self.has_fallen else ''}"
        return f"{'Finished' if self.is_complete else 'Not finished'}: {done}."

    @property
    def data_verdict(self) -> str:
        """Whether the data came fast enough."""
        if math.isnan(self.data_wait):
            return "Nothing is known of data loading yet."
        waited = f"the model waited for data {percent(self.data_wait, digits=1)} of the time"
        if self.data_wait < _LITTLE_WAITING:
            return f"Data loading keeps up: {waited}."
        if self.data_wait < _MUCH_WAITING:
            return f"Data loading costs a little speed: {waited}; {self._remedy}."
        return f"Data loading holds the run back: {waited}; {self._remedy}."

    @property
    def _remedy(self) -> str:
        """What makes loading faster."""
        if self.device.startswith("cpu"):
            shared = "it shares the cores with the model, so more workers hardly help"
            return f"{shared}, and images stored smaller do" if self.counted == "images" else shared
        return f"more workers, up to one a core,{' or images stored smaller' if self.counted == 'images' else ''} help"


def measure_outcome(run: RunRecord) -> Outcome:
    """The numbers of a run."""
    offsets, stage = epoch_offsets(run), run.stage
    train = [line for line in run.train if stage_number(line) == stage]
    evaluations = [line for line in run.evaluations if stage_number(line) == stage]
    measure = run.measures[0]
    best: Line | None = None
    for line in evaluations:
        value = number(line, measure.key)
        if not math.isnan(value) and (best is None or measure.is_better(value, number(best, measure.key))):
            best = line
    return Outcome(
        epochs=_largest(epochs_of([*train[-1:], *evaluations[-1:]], offsets)),
        planned_epochs=_plan_epochs(run),
        seconds=_sum_sittings([number(line, "seconds") for line in run.train]),
        speed=_median([number(line, f"{run.task.counted}_per_second") for line in train]),
        counted=run.task.counted,
        data_wait=_mean([number(line, "data_wait") for line in train]),
        device=str(run.plan.get("device", "")),
        is_complete=run.is_complete,
        measure=measure,
        last=evaluations[-1] if evaluations else None,
        best=best,
        epoch_of_best=math.nan if best is None else epochs_of([best], offsets)[0],
    )


def epoch_offsets(run: RunRecord) -> list[float]:
    """What to add to the epochs of each stage so that they follow each other, where each stage counts from 0."""
    spans: dict[int, list[float]] = {}
    for line in (*run.train, *run.evaluations):
        if not math.isnan(number(line, "epoch")):
            spans.setdefault(stage_number(line), []).append(number(line, "epoch"))
    offsets, end = [], 0.0
    for stage in range(max(spans, default=0) + 1):
        epochs = spans.get(stage, [end])
        offsets.append(end if min(epochs) < end else 0.0)
        end = max(epochs) + offsets[-1]
    return offsets


def epochs_of(lines: Sequence[Line], offsets: Sequence[float]) -> list[float]:
    """Where each line stands on the axis of all epochs."""
    return [number(line, "epoch") + offsets[stage_number(line)] for line in lines]


def describe_epochs(outcome: Outcome) -> str:
    """How far a run has come, such as "3.2 of 30 epochs"."""
    of = "" if math.isnan(outcome.planned_epochs) else f" of {outcome.planned_epochs:.4g}"
    return f"{round(outcome.epochs, 2):.4g}{of} epochs"


def describe_seconds(seconds: float) -> str:
    """A duration, such as "3 min 41 s"."""
    if math.isnan(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def describe_against(run: RunRecord) -> str | None:
    """Whether the run keeps to the published curve, and where and when it left it; None where there is no curve."""
    compared = [line for line in run.evaluations if isinstance(line.get("against"), dict)]
    if not compared:
        return None
    num_outside = sum(_side(line) != "inside" for line in compared)
    if not num_outside:
        return f"All {len(compared)} evaluations compared are inside the band of the published curve."
    offsets = epoch_offsets(run)
    moves = [after for before, after in pairwise([{}, *compared]) if _side(before) != _side(after)]
    told = ", ".join(
        f"{_SIDES[_side(line)]} from epoch {epochs_of([line], offsets)[0]:.4g} (step {number(line, 'step'):.0f})"
        for line in moves
    )
    return (
        f"The run left the band of the published curve: {told}; "
        f"{num_outside} of {len(compared)} evaluations are outside."
    )


def _side(line: Line) -> str:
    """On which side of the band an evaluation is; a run begins inside."""
    against = line.get("against")
    return str(against.get("side", "inside")) if isinstance(against, dict) else "inside"


def _plan_epochs(run: RunRecord) -> float:
    if run.recipe is None:
        return math.nan
    stages = [stage_of(run.recipe, place) for place in range(run.recipe.num_stages)]
    return math.nan if any(stage.steps for stage in stages) else sum(stage.epochs for stage in stages)


def _sum_sittings(seconds: Sequence[float]) -> float:
    """The whole time of a run whose clock starts anew each time it goes on after a stop."""
    known = [value for value in seconds if not math.isnan(value)]
    if not known:
        return math.nan
    ends = [before for before, after in pairwise(known) if after < before]
    return sum(ends) + known[-1]


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
