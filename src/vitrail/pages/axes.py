"""The axes of a chart as SVG: scales, ticks and the grid behind what is drawn.

Colours are written as variables of the stylesheet in attributes, so that a page shows them in light and in dark.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitrail.pages.words import text

WIDTH, HEIGHT = 500, 240  # of a chart, in units of its own
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 42  # margins: ticks stand in those on the left and below
TEXT = 'fill="var(--faint)" font-size="11.5"'

Tick = tuple[float, str]  # a place and its name


@dataclass(frozen=True)
class Scale:
    """A map from values to places in a drawing."""

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value stands; one outside the scale stands at its end."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.is_logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, *, only_whole: bool = False, most_decades: int = 2) -> list[Tick]:
        """Round values, about five of them; between powers of ten only where there are at most so many powers."""
        values = _decades(self.low, self.high, most=most_decades) if self.is_logarithmic else []
        if len(values) < 2:
            values = _multiples(self.low, self.high, only_whole=only_whole)
        return [(value, name_number(value)) for value in values]


def scale_across(low: float, high: float, *, is_logarithmic: bool = False, width: int = WIDTH) -> Scale:
    """A scale from the left of a chart to its right."""
    return Scale(low, high if high > low else low + 1.0, _LEFT, width - _RIGHT, is_logarithmic)


def scale_upward(low: float, high: float, *, is_logarithmic: bool = False, height: int = HEIGHT) -> Scale:
    """A scale from the bottom of a chart to its top."""
    return Scale(low, high if high > low else low + 1.0, height - _BOTTOM, _TOP, is_logarithmic)


@dataclass(frozen=True)
class Plot:
    """The area between two axes."""

    across: Scale
    upward: Scale

    def draw_grid(self, label: str, *, ticks: Sequence[Tick] | None = None) -> str:
        """Lines behind the values, with ticks on both axes and a label below."""
        left, right, base = self.across.start, self.across.end, self.upward.start
        parts = []
        for value, name in self.upward.ticks():
            y = self.upward.place(value)
            parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="var(--rule)"/>')
            parts.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end" {TEXT}>{text(name)}</text>')
        for value, name in self.across.ticks() if ticks is None else ticks:
            x = self.across.place(value)
            parts.append(f'<path d="M{x:.1f} {base}v4" stroke="var(--faint)"/>')
            parts.append(f'<text x="{x:.1f}" y="{base + 17}" text-anchor="middle" {TEXT}>{text(name)}</text>')
        parts.append(f'<path d="M{left} {base}H{right}" stroke="var(--faint)"/>')
        middle = (left + right) / 2
        parts.append(
            f'<text x="{middle:.1f}" y="{base + _BOTTOM - 5}" text-anchor="middle" {TEXT}>{text(label)}</text>'
        )
        return "".join(parts)

    def draw_box(self, *, across: tuple[float, float], upward: tuple[float, float], paint: str, title: str = "") -> str:
        """A rectangle between values; `paint` holds its attributes, `title` shows below the pointer."""
        left, right = map(self.across.place, across)
        bottom, top = map(self.upward.place, sorted(upward))
        hint = f"<title>{text(title)}</title>" if title else ""
        return (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" {paint}>'
            f"{hint}</rect>"
        )

    def join(self, points: Iterable[tuple[float, float]]) -> str:
        """Places of values, as the `points` of a polyline or polygon."""
        return " ".join(f"{self.across.place(x):.1f},{self.upward.place(y):.1f}" for x, y in points)


def render_svg(content: str, *, label: str) -> str:
    """A drawing for a page; the label says what it is to those who can't see it."""
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(label)}">{content}</svg>'


def name_number(value: float) -> str:
    """A number as short as it can be written, such as "0.5" and "1e-5"."""
    if value != 0 and not 0.01 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.6g}"


def _multiples(low: float, high: float, *, only_whole: bool) -> list[float]:
    """Multiples of the round number that divides a span into four to seven."""
    rough = (high - low) / 7
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    if only_whole:
        step = max(1.0, step)
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, *, most: int) -> list[float]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    factors = (1, 2, 5) if len(powers) <= most else (1,)
    ticks = [factor * 10.0**power for power in range(powers.start - 1, powers.stop) for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]
