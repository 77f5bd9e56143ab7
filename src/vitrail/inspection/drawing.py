"""Charts as SVG, small and the same on every machine."""

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vitrail.inspection.chart import Chart, Curve, Panel

_WIDTH, _ROW_HEIGHT = 8.4, 2.8  # inches
_LEAST_LENGTH = 4.0  # of an axis, in blocks, so that two blocks have room for their numbers
_MOST_MARKED = 48  # points of a curve
_INK, _FAINT, _RULE = "#1f2328", "#6a7078", "#e3e1dc"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text as text: small, and it can be searched
    "svg.hashsalt": "vitrail",  # names inside the file do not change from one time to the next
    "font.size": 9.0,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _FAINT,
    "axes.titlesize": 9.5,
    "text.color": _INK,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
}


def draw(chart: Chart) -> str:
    """The chart as an SVG document."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _ROW_HEIGHT * len(chart.rows)), layout="constrained")
        for part, row in zip(figure.subfigures(len(chart.rows), 1, squeeze=False)[:, 0], chart.rows, strict=True):
            widths = [max(panel.x.length, _LEAST_LENGTH) for panel in row]
            every = part.subplots(1, len(row), squeeze=False, width_ratios=widths)[0]
            for axes, panel in zip(every, row, strict=True):
                _draw_panel(axes, panel)
            _draw_legend(every)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        _draw_curve(axes, curve)
    if panel.level is not None:
        value, name = panel.level
        axes.axhline(value, color=_FAINT, linewidth=1, linestyle=(0, (4, 4)), label=name)
    if panel.from_zero and axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    if panel.is_percent:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_title(panel.title, loc="left", color=_INK)
    axes.set_ylabel(panel.y_label)
    axes.set_xlabel(panel.x.label)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    if panel.x.ticks is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        places = [place for place, _ in panel.x.ticks]
        axes.set_xticks(places, [name for _, name in panel.x.ticks])
        axes.set_xlim(min(places) - 0.5, max(places) + 0.5)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    values = [math.nan if value is None else value for value in curve.y]
    if curve.is_dotted:
        axes.plot(curve.x, values, "o", color=curve.colour, markersize=3.5, alpha=0.45, mew=0, label=curve.label)
        return
    axes.plot(
        curve.x,
        values,
        color=curve.colour,
        linewidth=1.6,
        linestyle=(0, (4, 2)) if curve.is_dashed else "-",
        marker="o" if len(values) <= _MOST_MARKED else "",
        markersize=3,
        label=curve.label,
    )
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=curve.colour, alpha=0.15, linewidth=0)


def _draw_legend(every: Sequence[Axes]) -> None:
    """On the right of the row, each name once; a single curve needs none."""
    named: dict[str, Artist] = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if len(named) > 1:
        every[-1].legend(
            list(named.values()),
            list(named),
            loc="center left",
            bbox_to_anchor=(1.02, 0.5),
            frameon=False,
            fontsize=8.5,
        )
