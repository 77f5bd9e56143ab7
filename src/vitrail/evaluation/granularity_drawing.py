"""kNN and retrieval over the granularity of labels, a line for each method (thesis figure 2.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vitrail.evaluation.drawings import save_figure
from vitrail.evaluation.granularity import NO_LABELS

MEASURES = {"top1": "kNN top-1 (%)", "map_cosine": "mAP, cosine (%)"}
_MARKS = "os^Dv*PX"
_MOST_UPRIGHT = 5  # levels whose names stand beside each other; more are written aslant


@dataclass(frozen=True)
class LevelledRun:
    """The figures of one run at every test level."""

    name: str
    method: str  # runs of one method are joined by a line
    trained_on: str | None  # a level of the data, NO_LABELS, or None for other labels
    figures: Mapping[str, Mapping[str, float]]  # test level -> measure -> percent


def find_method(name: str, level: str | None) -> str:
    """The name of a run without the level it was trained on: "grafit" of "grafit_genus"."""
    return (name if level is None else name.replace(level, "")).strip("_-. ") or "runs"


def draw_granularity(
    runs: Sequence[LevelledRun], levels: Sequence[str], path: Path, *, measures: Mapping[str, str] = MEASURES
) -> Path:
    """A row of panels for each measure, with the levels from the coarsest to the finest.

    Where a method has runs of several training levels there are two panels: tested at the level of training, and tested
    at the finest; runs of other labels are dashed, and runs of the same method and level are averaged. Else there is
    one: a line for each run over the test levels.
    """
    if not runs:
        raise ValueError("there is no run to draw")
    trained = {(run.method, run.trained_on) for run in runs if run.trained_on in levels}
    is_matrix = len(trained) > len({method for method, _ in trained})
    panels = [_draw_same, _draw_finest] if is_matrix else [_draw_tests]
    figure = Figure(figsize=(1.6 + 4.6 * len(panels), 3.4 * len(measures)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(measures), len(panels), squeeze=False)
    for row, (measure, label) in zip(grid, measures.items(), strict=True):
        for panel, draw in zip(row, panels, strict=True):
            draw(panel, runs, levels, measure)
            panel.set_ylabel(label)
            panel.grid(alpha=0.25)
    named = {line.get_label(): line for panel in grid.flat for line in reversed(panel.lines)}
    names = dict.fromkeys(line.get_label() for panel in grid.flat for line in panel.lines)
    handles = [named[name] for name in names]
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
    return save_figure(figure, path)


def _draw_tests(panel: Axes, runs: Sequence[LevelledRun], levels: Sequence[str], measure: str) -> None:
    """A line for each run over all test levels."""
    for place, run in enumerate(runs):
        _draw_line(panel, place, run.name, [run.figures[level].get(measure) for level in levels])
    _name_places(panel, levels, "test level")


def _draw_same(panel: Axes, runs: Sequence[LevelledRun], levels: Sequence[str], measure: str) -> None:
    """A line for each method over the levels, each its training and its test level."""
    for place, (method, own) in enumerate(_by_method(runs).items()):
        _draw_line(panel, place, method, [_mean(own, level, level, measure) for level in levels])
        others = [run for run in own if run.trained_on not in levels]
        _draw_line(panel, place, method, [_mean(others, None, level, measure) for level in levels], is_dashed=True)
    _name_places(panel, levels, "level of training and test")


def _draw_finest(panel: Axes, runs: Sequence[LevelledRun], levels: Sequence[str], measure: str) -> None:
    """A line for each method over the levels of training, all tested at the finest."""
    finest = levels[-1]
    places = ([NO_LABELS] if any(run.trained_on == NO_LABELS for run in runs) else []) + list(levels)
    for place, (method, own) in enumerate(_by_method(runs).items()):
        _draw_line(panel, place, method, [_mean(own, level, finest, measure) for level in places])
        others = [run for run in own if run.trained_on is None]
        _draw_line(panel, place, method, [_mean(others, None, finest, measure)] * len(places), is_dashed=True)
    _name_places(panel, places, f"level of training, tested at {finest}")


def _draw_line(panel: Axes, place: int, name: str, values: Sequence[float | None], *, is_dashed: bool = False) -> None:
    points = [(number, value) for number, value in enumerate(values) if value is not None]
    if not points:
        return
    colours = matplotlib.colormaps["tab10"]
    panel.plot(
        [number for number, _ in points],
        [value for _, value in points],
        color=colours(place % colours.N),
        label=name,
        linestyle="--" if is_dashed else "-",
        marker="" if is_dashed else _MARKS[place % len(_MARKS)],
        markersize=5,
    )


def _name_places(panel: Axes, levels: Sequence[str], label: str) -> None:
    is_aslant = len(levels) > _MOST_UPRIGHT
    panel.set_xticks(range(len(levels)), levels, rotation=30 if is_aslant else 0, ha="right" if is_aslant else "center")
    panel.set_xlim(-0.4, len(levels) - 0.6)
    panel.set_xlabel(label)


def _by_method(runs: Sequence[LevelledRun]) -> dict[str, list[LevelledRun]]:
    methods: dict[str, list[LevelledRun]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    return methods


def _mean(runs: Sequence[LevelledRun], trained_on: str | None, tested_at: str, measure: str) -> float | None:
    """The mean figure of the runs of a training level (None: of all of them) at a test level."""
    own = [run for run in runs if trained_on is None or run.trained_on == trained_on]
    values = [value for run in own if (value := run.figures[tested_at].get(measure)) is not None]
    return fmean(values) if values else None
