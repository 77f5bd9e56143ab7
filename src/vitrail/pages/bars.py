"""Bars: rows of them below each other with a name and a number, and upright ones over ranges of values."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vitrail.pages.axes import Plot, render_svg, scale_across, scale_upward
from vitrail.pages.charts import colour_of
from vitrail.pages.words import text

_MAX_ROWS = 60  # of more rows the first and the last are drawn
_LEAST_HEIGHT = 0.01  # of an upright bar, beside the highest: a single image can be seen


class BarRow(NamedTuple):
    """A name, its bars one below the other, and what they say in numbers."""

    name: str
    values: Sequence[float]
    number: str
    title: str = ""  # of the number, below the pointer


def draw_bars(rows: Sequence[BarRow], *, most: float, noun: str) -> str:
    """Rows of bars, the longest of them for a value of `most`; of very many rows those between are left out.

    They are text and boxes: names stay readable on a phone, where a drawing would shrink.
    """
    half = _MAX_ROWS // 2
    is_cut = len(rows) > _MAX_ROWS
    between = f'<div class="between">… {len(rows) - 2 * half:,} {text(noun)} between …</div>' if is_cut else ""
    first, last = (rows[:half], rows[-half:]) if is_cut else (rows, ())
    drawn = [*(_draw_row(row, most=most) for row in first), between, *(_draw_row(row, most=most) for row in last)]
    return f'<div class="rows">{"".join(drawn)}</div>'


def draw_bar(share: float, *, colour: int = 0) -> str:
    """One bar on its track, from 0 to 1."""
    return f'<span class="bars">{_draw_bar(share, colour=colour)}</span>'


def _draw_row(row: BarRow, *, most: float) -> str:
    name = text(row.name)
    bars = "".join(_draw_bar(value / (most or 1), colour=place) for place, value in enumerate(row.values))
    title = f' title="{text(row.title)}"' if row.title else ""
    return (
        f'<div class="row"><span class="name" title="{name}">{name}</span><span class="bars">{bars}</span>'
        f'<span class="number"{title}>{text(row.number)}</span></div>'
    )


def _draw_bar(share: float, *, colour: int) -> str:
    return f'<i class="bar" style="width:{100 * share:.1f}%;background:{colour_of(colour)}"></i>'


def draw_histogram(
    counts: Sequence[int],
    *,
    edges: Sequence[float],
    label: str,
    describe: Callable[[int], str],
    is_logarithmic: bool = False,
) -> str:
    """Upright bars of how many there are between each edge and the next.

    `describe` says in words what the bar of a place stands for.
    """
    most = max(1, *counts)
    plot = Plot(scale_across(edges[0], edges[-1], is_logarithmic=is_logarithmic), scale_upward(0.0, 1.06 * most))
    paint = f'fill="{colour_of(0)}" stroke="var(--sheet)"'
    bars = (
        plot.draw_box(
            across=(edges[place], edges[place + 1]),
            upward=(0.0, max(count, _LEAST_HEIGHT * most)),
            paint=paint,
            title=describe(place),
        )
        for place, count in enumerate(counts)
        if count
    )
    return render_svg(plot.draw_grid(label) + "".join(bars), label=label)
