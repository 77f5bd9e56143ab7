"""The course of a run: accuracy, losses, learning rate, gradients and waiting, over its epochs."""

import math
from collections.abc import Sequence
from dataclasses import replace

from vitrail.pages.charts import Axis, Band, Curve, LineChart, draw_charts, smooth
from vitrail.pages.frame import PageSection
from vitrail.pages.words import text
from vitrail.training.runs.report.outcome import Outcome, describe_against, epoch_offsets, epochs_of
from vitrail.training.runs.report.record import Line, RunRecord, number, stage_number

_TOP1, _COARSE, _PUBLISHED = 0, 1, 2  # their colours


def course_section(run: RunRecord, outcome: Outcome) -> PageSection:
    """How the run went from its first step to its last."""
    said = [describe_against(run), outcome.data_verdict]
    paragraphs = "".join(f"<p>{text(line)}</p>" for line in said if line)
    return PageSection("Course", paragraphs + draw_charts(_make_charts(_Course(run))), anchor="course")


def _make_charts(course: "_Course") -> list[LineChart]:
    top1 = course.measured("top1", label="top-1", colour=_TOP1)
    coarse = course.measured("coarse_top1", label="coarse top-1", colour=_COARSE)
    loss, norm = course.logged("loss"), course.logged("gradient_norm")
    waiting = course.logged("data_wait", factor=100.0)
    return [
        course.chart("Accuracy on val, %", [*course.published(), *coarse, *top1], limit=100.0, bands=course.bands()),
        course.chart("Training loss", _with_smoothed(loss)),
        course.chart("Loss on val", course.measured("negative_log_likelihood")),
        course.chart("Learning rate", course.logged("lr"), from_zero=True),
        course.chart("Norm of the gradient", _with_smoothed(norm)),
        course.chart("Time spent waiting for data, %", _with_smoothed(waiting), from_zero=True, limit=100.0),
    ]


class _Course:
    """The lines of metrics of a run as curves, one for each stage."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        offsets = epoch_offsets(run)
        self.trained, self.judged = epochs_of(run.train, offsets), epochs_of(run.evaluations, offsets)
        self.end = max((epoch for epoch in (*self.trained, *self.judged) if not math.isnan(epoch)), default=0.0)
        starts = {stage_number(line): epoch for line, epoch in zip(run.train[::-1], self.trained[::-1], strict=True)}
        self.marks = [(offsets[stage] or starts[stage], f"stage {stage + 1}") for stage in sorted(starts) if stage > 0]

    def logged(self, key: str, *, factor: float = 1.0) -> list[Curve]:
        """A value of the training steps."""
        return _split(self.run.train, self.trained, [factor * number(line, key) for line in self.run.train])

    def measured(self, key: str, *, label: str = "", colour: int = 0) -> list[Curve]:
        """A value of the evaluations."""
        values = [number(line, key) for line in self.run.evaluations]
        curves = _split(self.run.evaluations, self.judged, values)
        return [replace(curve, label=label, colour=colour) for curve in curves]

    def published(self) -> list[Curve]:
        """The published accuracy."""
        values = [_against(line, "published") for line in self.run.evaluations]
        curves = _split(self.run.evaluations, self.judged, values)
        return [replace(curve, label="published", colour=_PUBLISHED, style="dashed") for curve in curves]

    def bands(self) -> list[Band]:
        """What is close enough to the published accuracy."""
        low = [_against(line, "low") for line in self.run.evaluations]
        high = [_against(line, "high") for line in self.run.evaluations]
        return [Band(self.judged, low, high, _PUBLISHED)]

    def chart(
        self,
        title: str,
        curves: Sequence[Curve],
        *,
        from_zero: bool = False,
        limit: float = math.inf,
        bands: Sequence[Band] = (),
    ) -> LineChart:
        """Curves over all epochs, with a mark where a stage begins."""
        axis = Axis("epoch", low=0.0, high=self.end)
        return LineChart(title, curves, axis, bands=bands, marks=self.marks, from_zero=from_zero, limit=limit)


def _split(lines: Sequence[Line], epochs: Sequence[float], values: Sequence[float]) -> list[Curve]:
    """A curve for each stage."""
    places: dict[int, list[int]] = {}
    for place, line in enumerate(lines):
        places.setdefault(stage_number(line), []).append(place)
    return [Curve([epochs[place] for place in held], [values[place] for place in held]) for held in places.values()]


def _with_smoothed(curves: Sequence[Curve]) -> list[Curve]:
    return [*(replace(curve, style="faint") for curve in curves), *map(smooth, curves)]


def _against(line: Line, key: str) -> float:
    against = line.get("against")
    return number(against, key) if isinstance(against, dict) else math.nan
