"""Charts of curves as SVG, in a page or as files of their own."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from vitrail.pages.axes import HEIGHT, TEXT, WIDTH, Plot, Scale, Tick, render_svg, scale_across, scale_upward
from vitrail.pages.frame import read_style
from vitrail.pages.words import text

NUM_COLOURS = 8  # of the stylesheet
_MAX_POINTS = 300  # of a curve: more cannot be told apart at this width
_MAX_MARKED = 40  # points of a curve that are drawn each
_LEAST_ROOM = 0.005  # around values that hardly differ, so that their ticks need few digits
_SMOOTHING = 0.03  # of the points of a curve go into each point of its smoothed one
_TITLE_HEIGHT, _LETTER = 22, 6.4  # in a file of its own: room for a title, and for a letter of the legend
_STYLES = {
    "line": 'stroke-width="2"',
    "faint": 'stroke-width="1" stroke-opacity="0.35"',
    "dashed": 'stroke-width="2" stroke-dasharray="6 4"',
}
_LEVEL = 'stroke="var(--faint)" stroke-dasharray="5 4"'

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Curve:
    """Points to be joined; those that are missing or not finite are left out."""

    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""  # in the legend; "" for none
    colour: int = 0  # number of a colour of the stylesheet
    style: Literal["line", "faint", "dashed", "dots"] = "line"
    opacity: float = 1.0

    def points(self) -> list[Point]:
        """The points that can be drawn; of very many the means of equally many neighbours."""
        points = [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None and _is_finite(x, y)]
        if len(points) <= _MAX_POINTS or self.style == "dots":
            return points
        ends = [place * len(points) // _MAX_POINTS for place in range(_MAX_POINTS + 1)]
        return [_center(points[start:end]) for start, end in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Band:
    """A region between two curves."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: int = 0

    def points(self) -> list[tuple[float, float, float]]:
        """The points that are finite: a place, its lower and its upper value."""
        return [point for point in zip(self.x, self.low, self.high, strict=True) if _is_finite(*point)]


@dataclass(frozen=True)
class Axis:
    """What goes from left to right; its ends are those of the curves unless given."""

    label: str
    low: float | None = None
    high: float | None = None
    ticks: Sequence[Tick] | None = None  # places and names; None: round numbers
    is_whole: bool = False  # has whole numbers alone


@dataclass(frozen=True, eq=False)
class LineChart:
    """Curves that share their axes."""

    title: str  # what goes upward, and its unit
    curves: Sequence[Curve]
    x: Axis
    bands: Sequence[Band] = ()
    marks: Sequence[tuple[float, str]] = ()  # upright lines and their names
    level: tuple[float, str] | None = None  # a horizontal line to compare with, and what it is
    from_zero: bool = False
    limit: float = math.inf  # the largest value there can be


def smooth(curve: Curve) -> Curve:
    """The moving average of a curve, from neighbours on both sides, fewer at its ends."""
    points = curve.points()
    reach = round(_SMOOTHING * len(points) / 2)
    near = [points[max(0, place - reach) : place + reach + 1] for place in range(len(points))]
    means = [sum(y for _, y in own) / len(own) for own in near]
    return replace(curve, x=[x for x, _ in points], y=means, style="line")


def draw_chart(chart: LineChart) -> str:
    """The chart for a page, below its title and the names of its curves."""
    content = _draw_content(chart)
    drawing = render_svg(content, label=chart.title) if content else '<p class="more">There is nothing to draw yet.</p>'
    return f'<div class="drawn"><h3>{text(chart.title)}{draw_legend(_keys_of([chart]))}</h3>{drawing}</div>'


def draw_charts(charts: Iterable[LineChart]) -> str:
    """Charts side by side, as many as there is room for."""
    return f'<div class="charts">{"".join(map(draw_chart, charts))}</div>'


@dataclass(frozen=True)
class Key:
    """A line of a legend."""

    label: str
    colour: str = "var(--colour-0)"
    style: str = "line"
    opacity: float = 1.0


def draw_legend(keys: Sequence[Key]) -> str:
    """The names of curves or bars beside their colours; one alone needs none."""
    if len(keys) < 2:
        return ""
    lines = {"dashed": "dashed", "dots": "dotted"}
    shown = "".join(
        f'<span class="key"><i style="border-top:4px {lines.get(key.style, "solid")} {key.colour};'
        f'opacity:{key.opacity:.2f}"></i>{text(key.label)}</span>'
        for key in keys
    )
    return f'<span class="legend">{shown}</span>'


def colour_of(number: int) -> str:
    """A colour of the stylesheet, by its number; they come again after the last."""
    return f"var(--colour-{number % NUM_COLOURS})"


def draw_document(rows: Sequence[Sequence[LineChart]]) -> str:
    """Rows of charts as an SVG file of its own in the light colours, each row with its legend on the right."""
    legends = [_keys_of(row) for row in rows]
    longest = max((len(key.label) for keys in legends if len(keys) > 1 for key in keys), default=0)
    charts_width = WIDTH * max(map(len, rows))
    width, row_height = charts_width + (40 + _LETTER * longest if longest else 0), HEIGHT + _TITLE_HEIGHT
    parts = []
    for number, (row, keys) in enumerate(zip(rows, legends, strict=True)):
        for place, chart in enumerate(row):
            title = f'<text x="8" y="-6" fill="var(--ink)" font-size="13">{text(chart.title)}</text>'
            where = f"translate({place * WIDTH} {number * row_height + _TITLE_HEIGHT})"
            parts.append(f'<g transform="{where}">{title}{_draw_content(chart)}</g>')
        if len(keys) > 1:
            where = f"translate({charts_width} {number * row_height + _TITLE_HEIGHT + 12})"
            parts.append(f'<g transform="{where}">{"".join(_draw_keys(keys))}</g>')
    return render_document("".join(parts), width=round(width), height=row_height * len(rows))


def render_document(content: str, *, width: int, height: int) -> str:
    """A drawing as an SVG file of its own, in the light colours of the stylesheet."""
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif">'
        f'<rect width="100%" height="100%" fill="var(--sheet)"/>{content}</svg>\n'
    )
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", read_style().partition("}")[0]))
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], drawing)


def _draw_keys(keys: Sequence[Key]) -> Iterator[str]:
    for place, key in enumerate(keys):
        y = 18 * place
        dashes = ' stroke-dasharray="6 4"' if key.style == "dashed" else ""
        paint = f'stroke="{key.colour}" stroke-width="2" stroke-opacity="{key.opacity:.2f}"{dashes}'
        shape = (
            f'<circle cx="9" cy="{y}" r="3" fill="{key.colour}" fill-opacity="{key.opacity:.2f}"/>'
            if key.style == "dots"
            else f'<path d="M0 {y}h18" {paint}/>'
        )
        yield f'{shape}<text x="25" y="{y + 4}" {TEXT}>{text(key.label)}</text>'


def _keys_of(charts: Iterable[LineChart]) -> list[Key]:
    """The lines of a legend, each name once."""
    keys: dict[str, Key] = {}
    for chart in charts:
        for curve in chart.curves:
            if curve.label and curve.points():
                opacity = curve.opacity * (0.45 if curve.style == "dots" else 1.0)
                keys.setdefault(curve.label, Key(curve.label, colour_of(curve.colour), curve.style, opacity))
        if chart.level is not None:
            keys.setdefault(chart.level[1], Key(chart.level[1], "var(--faint)", "dashed"))
    return list(keys.values())


def _draw_content(chart: LineChart) -> str:
    """The chart without its title and legend; nothing where there are no points."""
    shown = [(curve, points) for curve in chart.curves if (points := curve.points())]
    if not shown:
        return ""
    xs = [x for _, points in shown for x, _ in points]
    values = [y for _, points in shown for _, y in points]
    values += [value for band in chart.bands for _, *ends in band.points() for value in ends]
    if chart.level is not None:
        values.append(chart.level[0])
    low = min(xs) if chart.x.low is None else chart.x.low
    high = max(xs) if chart.x.high is None else chart.x.high
    plot = Plot(scale_across(low, high), _fit(values, from_zero=chart.from_zero, limit=chart.limit))
    ticks = plot.across.ticks(only_whole=chart.x.is_whole) if chart.x.ticks is None else chart.x.ticks
    parts = [plot.draw_grid(chart.x.label, ticks=ticks), *_draw_marks(chart, plot)]
    parts += [_draw_band(band, plot) for band in chart.bands if band.points()]
    parts += [_draw_curve(curve, points, plot) for curve, points in shown]
    return "".join(parts)


def _fit(values: Sequence[float], *, from_zero: bool, limit: float) -> Scale:
    """An upright scale that has room for all values; logarithmic where a few are far above the others."""
    low, high = min(values), max(values)
    if low > 0 and not from_zero and high > 50 * low:
        return scale_upward(low, high, is_logarithmic=True)
    if from_zero:
        low = min(0.0, low)
    room = max(0.06 * (high - low), _LEAST_ROOM * abs(high)) or 1.0
    low = low if from_zero and low == 0 else max(low - room, 0.0) if low >= 0 else low - room
    return scale_upward(low, min(high + room, limit) if limit > low else high + room)


def _draw_marks(chart: LineChart, plot: Plot) -> Iterator[str]:
    top, base = plot.upward.end, plot.upward.start
    for value, name in chart.marks:
        x = plot.across.place(value)
        yield f'<path d="M{x:.1f} {top}V{base}" stroke="var(--faint)" stroke-dasharray="2 4"/>'
        yield f'<text x="{x + 4:.1f}" y="{top + 9}" {TEXT}>{text(name)}</text>'
    if chart.level is not None:
        yield f'<path d="M{plot.across.start} {plot.upward.place(chart.level[0]):.1f}H{plot.across.end}" {_LEVEL}/>'


def _draw_band(band: Band, plot: Plot) -> str:
    points = band.points()
    edge = [(x, low) for x, low, _ in points] + [(x, high) for x, _, high in reversed(points)]
    return f'<polygon class="band" points="{plot.join(edge)}" fill="{colour_of(band.colour)}" fill-opacity="0.18"/>'


def _draw_curve(curve: Curve, points: Sequence[Point], plot: Plot) -> str:
    colour = colour_of(curve.colour)
    opacity = f' opacity="{curve.opacity:.2f}"' if curve.opacity < 1 else ""
    if curve.style == "dots":
        return f'<g fill="{colour}" fill-opacity="0.45"{opacity}>{_draw_dots(points, plot, radius=3)}</g>'
    if len(points) == 1:
        return f'<g fill="{colour}"{opacity}>{_draw_dots(points, plot, radius=3)}</g>'
    line = f'<polyline points="{plot.join(points)}" fill="none" {_STYLES[curve.style]} stroke-linejoin="round"/>'
    is_marked = curve.style == "line" and len(points) <= _MAX_MARKED
    dots = _draw_dots(points, plot, radius=2.5) if is_marked else ""
    return f'<g stroke="{colour}"{opacity}>{line}<g fill="{colour}" stroke="none">{dots}</g></g>'


def _draw_dots(points: Iterable[Point], plot: Plot, *, radius: float) -> str:
    places = ((plot.across.place(x), plot.upward.place(y)) for x, y in points)
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in places)


def _is_finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _center(points: Sequence[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
