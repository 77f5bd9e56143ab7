"""The course of a run: accuracy, losses, learning rate, gradients and waiting, over its epochs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from vitrail.training.runs.report.axes import Band, Curve, draw_lines, smooth
from vitrail.training.runs.report.outcome import epoch_offsets, epochs_of
from vitrail.training.runs.report.record import Line, RunRecord, number, stage_number

_TOP1, _COARSE, _PUBLISHED = 0, 1, 2  # their colours


def draw_curves(run: RunRecord) -> str:
    """All charts, each with its title and the names of its curves."""
    course = _Course(run)
    top1, coarse = course.measured("top1", colour=_TOP1), course.measured("coarse_top1", colour=_COARSE)
    published = course.published()
    names = {_TOP1: "top-1", _COARSE: "coarse top-1", _PUBLISHED: "published"}
    present = {curve.colour for curve in (*top1, *coarse, *published) if len(curve.points())}
    legend = {colour: name for colour, name in names.items() if colour in present and len(present) > 1}
    loss, norm = course.logged("loss"), course.logged("gradient_norm")
    waiting = course.logged("data_wait", factor=100.0)
    return f"""<div class="charts">
{course.draw("Accuracy on val, %", [*published, *coarse, *top1], limit=100.0, band=course.band(), legend=legend)}
{course.draw("Training loss", [*_faint(loss), *map(smooth, loss)])}
{course.draw("Loss on val", course.measured("negative_log_likelihood"))}
{course.draw("Learning rate", course.logged("lr"), from_zero=True)}
{course.draw("Norm of the gradient", [*_faint(norm), *map(smooth, norm)])}
{course.draw("Time spent waiting for data, %", [*_faint(waiting), *map(smooth, waiting)], from_zero=True, limit=100.0)}
</div>"""


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

    def measured(self, key: str, *, colour: int = 0) -> list[Curve]:
        """A value of the evaluations."""
        values = [number(line, key) for line in self.run.evaluations]
        return _split(self.run.evaluations, self.judged, values, colour=colour)

    def published(self) -> list[Curve]:
        """The published accuracy."""
        values = [_against(line, "published") for line in self.run.evaluations]
        return _split(self.run.evaluations, self.judged, values, colour=_PUBLISHED, style="dashed")

    def band(self) -> Band | None:
        """What is close enough to the published accuracy."""
        low = [_against(line, "low") for line in self.run.evaluations]
        high = [_against(line, "high") for line in self.run.evaluations]
        if all(map(math.isnan, low)) or all(map(math.isnan, high)):
            return None
        return Band(self.judged, low, high)

    def draw(
        self,
        title: str,
        curves: Sequence[Curve],
        *,
        from_zero: bool = False,
        limit: float = math.inf,
        band: Band | None = None,
        legend: dict[int, str] | None = None,
    ) -> str:
        """A chart below its title."""
        keys = "".join(
            f'<span class="key"><i class="bar split-{colour}"></i>{escape(name)}</span>'
            for colour, name in (legend or {}).items()
        )
        chart = draw_lines(
            curves, label=title, end=self.end, band=band, from_zero=from_zero, limit=limit, marks=self.marks
        )
        return f'<div><h3>{escape(title)}<span class="legend">{keys}</span></h3>{chart}</div>'


def _split(
    lines: Sequence[Line], epochs: Sequence[float], values: Sequence[float], *, colour: int = 0, style: str = ""
) -> list[Curve]:
    """A curve for each stage."""
    places: dict[int, list[int]] = {}
    for place, line in enumerate(lines):
        places.setdefault(stage_number(line), []).append(place)
    return [
        Curve([epochs[place] for place in held], [values[place] for place in held], colour, style)
        for held in places.values()
    ]


def _faint(curves: Sequence[Curve]) -> list[Curve]:
    return [replace(curve, style="faint") for curve in curves]


def _against(line: Line, key: str) -> float:
    against = line.get("against")
    return number(against, key) if isinstance(against, dict) else math.nan
