"""The course of a run: measures, losses, learning rate, gradients and waiting, over its epochs."""

import math
from collections.abc import Sequence
from dataclasses import replace

from vitrail.pages.charts import Axis, Band, Curve, LineChart, draw_charts, smooth
from vitrail.pages.frame import PageSection
from vitrail.pages.words import text
from vitrail.tasks.results import Measure
from vitrail.training.runs.report.outcome import Outcome, describe_against, epoch_offsets, epochs_of
from vitrail.training.runs.report.run_record import Line, RunRecord, number, stage_number

_PUBLISHED = 2  # its colour


def course_section(run: RunRecord, outcome: Outcome) -> PageSection:
    """How the run went from its first step to its last."""
    said = [describe_against(run), outcome.data_verdict]
    paragraphs = "".join(f"<p>{text(line)}</p>" for line in said if line)
    return PageSection("Course", paragraphs + draw_charts(_make_charts(_Course(run))), anchor="course")


def _make_charts(course: "_Course") -> list[LineChart]:
    loss, norm = course.logged("loss"), course.logged("gradient_norm")
    waiting = course.logged("data_wait", factor=100.0)
    first, *others = course.measured_charts()
    return [
        first,
        course.chart("Training loss", _with_smoothed(loss)),
        *others,
        *course.signal_charts(),
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

    def measured_charts(self) -> list[LineChart]:
        """A chart for each title that the measures of the task have; the first measure's has the published curve too."""
        charts: dict[str, list[Measure]] = {}
        for measure in self.run.measures:
            charts.setdefault(measure.chart or "", []).append(measure)
        main = self.run.measures[0].chart
        drawn = []
        for title, measures in sorted(charts.items(), key=lambda chart: chart[0] != main):
            if not title:
                continue
            curves = [
                curve
                for colour, measure in reversed(list(enumerate(measures)))
                for curve in self.measured(measure.key, label=measure.label if len(measures) > 1 else "", colour=colour)
            ]
            if title != main and self.run.evaluations and not any(curve.points() for curve in curves):
                continue  # what this run does not measure
            limit = 100.0 if measures[0].unit == "%" else math.inf
            published, bands = (self.published(), self.bands()) if title == main else ([], [])
            drawn.append(self.chart(title, [*published, *curves], limit=limit, bands=bands))
        return drawn or [self.chart(self.run.measures[0].label, self.measured(self.run.measures[0].key))]

    def signal_charts(self) -> list[LineChart]:
        """A chart for each title that signals of the task's training steps have, where the run has any of them."""
        signals = self.run.task.signals
        charts: dict[str, list[Curve]] = {signal.chart: [] for signal in signals}
        for signal in signals:
            colour = len({curve.label for curve in charts[signal.chart]})
            found = (curve for curve in self.logged(f"loss_{signal.key}") if curve.points())
            charts[signal.chart] += [replace(curve, label=signal.label, colour=colour) for curve in found]
        return [self.chart(title, curves) for title, curves in charts.items() if curves]

    def published(self) -> list[Curve]:
        """The published course of the first measure."""
        values = [_against(line, "published") for line in self.run.evaluations]
        curves = _split(self.run.evaluations, self.judged, values)
        return [replace(curve, label="published", colour=_PUBLISHED, style="dashed") for curve in curves]

    def bands(self) -> list[Band]:
        """What is close enough to the published course."""
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
