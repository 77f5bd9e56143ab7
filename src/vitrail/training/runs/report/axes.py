"""Line charts as SVG: scales, ticks, and curves thinned out to what can be seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

_WIDTH, _HEIGHT = 500, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 10, 34  # margins: ticks stand in those on the left and below
_MAX_POINTS = 300  # of a curve: more cannot be told apart at this width
_SMOOTHING = 0.03  # of the points of a curve go into each point of its smoothed one


@dataclass(frozen=True, eq=False)
class Curve:
    """Points to be joined; those that are not finite are left out."""

    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0  # number of a colour of the page
    style: str = ""  # "faint", "dashed", "dots"

    def points(self) -> np.ndarray:
        """[points, 2], thinned out to the means of equally many neighbours."""
        points = np.stack([np.asarray(self.x, dtype=np.float64), np.asarray(self.y, dtype=np.float64)], axis=1)
        points = points[np.isfinite(points).all(axis=1)]
        if len(points) <= _MAX_POINTS:
            return points
        return np.stack([part.mean(axis=0) for part in np.array_split(points, _MAX_POINTS)])


@dataclass(frozen=True, eq=False)
class Band:
    """A region between two curves."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def smooth(curve: Curve) -> Curve:
    """The moving average of a curve, from neighbours on both sides, fewer at its ends."""
    points = curve.points()
    reach = round(_SMOOTHING * len(points) / 2)
    sums = np.concatenate([[0.0], np.cumsum(points[:, 1])])
    place = np.arange(len(points))
    low, high = np.maximum(place - reach, 0), np.minimum(place + reach + 1, len(points))
    return Curve(points[:, 0].tolist(), ((sums[high] - sums[low]) / (high - low)).tolist(), curve.colour)


@dataclass(frozen=True)
class _Scale:
    """Values to places on the page."""

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.is_logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            return _decades(self.low, self.high)
        step = _step(self.high - self.low)
        return [step * number for number in range(math.ceil(self.low / step - 1e-9), int(self.high / step + 1e-9) + 1)]


def draw_lines(
    curves: Sequence[Curve],
    *,
    label: str,
    end: float,
    band: Band | None = None,
    from_zero: bool = False,
    limit: float = math.inf,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """A chart over epochs from 0 to `end`; `limit` is the largest value there can be, `marks` are upright lines."""
    shown = [(curve, points) for curve in curves if len(points := curve.points())]
    if not shown:
        return '<p class="more">Nothing has been logged yet.</p>'
    every = np.concatenate([points for _, points in shown])
    values = every[:, 1] if band is None else np.concatenate([every[:, 1], _finite(band.low), _finite(band.high)])
    across = _Scale(0.0, end if end > 0 else 1.0, _LEFT, _WIDTH - _RIGHT)
    upward = _fit(values, from_zero=from_zero, limit=limit)
    parts = [_draw_grid(across, upward), _draw_marks(marks, across)]
    if band is not None:
        parts.append(_draw_band(band, across, upward))
    parts += [_draw_curve(curve, points, across, upward) for curve, points in shown]
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def _fit(values: np.ndarray, *, from_zero: bool, limit: float) -> _Scale:
    """An upright scale that has room for all values; logarithmic where a few are far above the others."""
    low, high = float(values.min()), float(values.max())
    start, end = _HEIGHT - _BOTTOM, _TOP
    if low > 0 and not from_zero and high > 50 * low:
        return _Scale(low, high, start, end, is_logarithmic=True)
    if from_zero:
        low = min(0.0, low)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    low = low if from_zero else max(low - room, 0.0) if low >= 0 else low - room
    return _Scale(low, min(high + room, limit) if limit > low else high + room, start, end)


def _step(span: float) -> float:
    """The round number that divides a span into four to seven."""
    rough = span / 7
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    factors = (1, 3) if len(powers) < 3 else (1,)
    ticks = [factor * 10.0**power for power in range(powers.start - 1, powers.stop) for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _name(value: float) -> str:
    if value != 0 and not 0.01 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.6g}"


def _draw_grid(across: _Scale, upward: _Scale) -> str:
    parts = []
    for tick in upward.ticks():
        y = upward.place(tick)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_name(tick)}</text>')
    base = _HEIGHT - _BOTTOM
    for tick in across.ticks():
        x = across.place(tick)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 17}" text-anchor="middle">{_name(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 3}" text-anchor="middle">epoch</text>')
    return "".join(parts)


def _draw_marks(marks: Sequence[tuple[float, str]], across: _Scale) -> str:
    parts = []
    for value, name in marks:
        x = across.place(value)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{_TOP + 9}">{escape(name)}</text>')
    return "".join(parts)


def _draw_band(band: Band, across: _Scale, upward: _Scale) -> str:
    points = [point for point in zip(band.x, band.low, band.high, strict=True) if all(map(math.isfinite, point))]
    edge = [(x, low) for x, low, _ in points] + [(x, high) for x, _, high in reversed(points)]
    return f'<polygon class="band" points="{_join(np.array(edge).reshape(-1, 2), across, upward)}"/>'


def _draw_curve(curve: Curve, points: np.ndarray, across: _Scale, upward: _Scale) -> str:
    if len(points) == 1:
        x, y = across.place(points[0, 0]), upward.place(points[0, 1])
        return f'<circle class="fill-{curve.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    return f'<polyline class="curve colour-{curve.colour} {curve.style}" points="{_join(points, across, upward)}"/>'


def _join(points: np.ndarray, across: _Scale, upward: _Scale) -> str:
    return " ".join(f"{across.place(x):.1f},{upward.place(y):.1f}" for x, y in points.tolist())
