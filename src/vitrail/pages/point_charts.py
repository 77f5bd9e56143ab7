"""Charts of points that have names, in series, with names that do not cover each other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vitrail.pages.axes import TEXT, Plot, Scale, scale_across, scale_upward
from vitrail.pages.charts import Key, colour_of, draw_legend, render_document
from vitrail.pages.words import text

WIDTH, HEIGHT = 1000, 500  # of a chart, in units of its own
_HEADING = 46  # in a file of its own: room for a title and the legend below it
_RADIUS, _LETTER, _LINE = 3.6, 7.0, 12.0  # of a dot; about the width and the height of a name's letters
_ROOM = 0.06  # beside the outermost points, as a share of an axis
_REACHES = (7.0, 15.0, 25.0)  # from a dot to its name; one that is farther is tied to its dot by a line
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))


@dataclass(frozen=True)
class NamedPoint:
    """A point of a chart."""

    x: float
    y: float
    label: str
    hint: str = ""  # what shows below the pointer


@dataclass(frozen=True, eq=False)
class PointSeries:
    """Points of one colour; the best ones are joined by a line."""

    label: str  # in the legend, once for all series of the same label
    points: Sequence[NamedPoint]
    colour: int = 0  # number of a colour of the stylesheet
    is_hollow: bool = False  # a second kind of points of the same colour: empty dots, dashed lines


@dataclass(frozen=True, eq=False)
class PointChart:
    """Series of points that share their axes; the one that goes across is logarithmic."""

    title: str  # what goes upward, and its unit
    x_label: str
    series: Sequence[PointSeries]
    is_gain: bool = False  # what goes across is better the more there is of it


@dataclass(frozen=True)
class LabelBox:
    """A rectangle in units of the drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "LabelBox") -> bool:
        """Whether two rectangles share any place."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, other: "LabelBox") -> bool:
        """Whether the other one is inside this one."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


def draw_points(chart: PointChart) -> str:
    """The chart for a page, below its title and the names of its series."""
    drawing = (
        f'<svg class="chart points" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(chart.title)}">'
        f"{_draw_content(chart)}</svg>"
    )
    legend = draw_legend(_keys_of(chart))
    return f'<div class="drawn"><h3>{text(chart.title)}{legend}</h3><div class="scroll">{drawing}</div></div>'


def draw_points_document(charts: Sequence[PointChart]) -> str:
    """Charts one below the other as an SVG file of its own, in the light colours."""
    parts = []
    for number, chart in enumerate(charts):
        title = f'<text x="8" y="{18 - _HEADING}" fill="var(--ink)" font-size="14">{text(chart.title)}</text>'
        legend = "".join(_draw_keys(_keys_of(chart), y=-8.0))
        where = f"translate(0 {number * (HEIGHT + _HEADING) + _HEADING})"
        parts.append(f'<g transform="{where}">{title}{legend}{_draw_content(chart)}</g>')
    return render_document("".join(parts), width=WIDTH, height=len(charts) * (HEIGHT + _HEADING))


def join_best(points: Iterable[NamedPoint], *, is_gain: bool = False) -> list[NamedPoint]:
    """Of points those that are higher than every one that costs no more, or gains no less, from the cheapest on."""
    sign = -1 if is_gain else 1
    best: list[NamedPoint] = []
    for point in sorted(points, key=lambda point: (sign * point.x, -point.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def place_labels(
    dots: Sequence[tuple[float, float]], labels: Sequence[str], *, inside: LabelBox
) -> list[tuple[LabelBox, float] | None]:
    """Where the name of each dot stands, and how far from it; None where there is no room that nothing else has.

    Dots further up and to the right come first.
    """
    taken = [LabelBox(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in dots]
    found: list[tuple[LabelBox, float] | None] = [None] * len(dots)
    for place in sorted(range(len(dots)), key=lambda place: (dots[place][1], -dots[place][0])):
        (x, y), label = dots[place], labels[place]
        tried = ((box, reach) for reach in _REACHES for box in _around(x, y, label, reach=reach))
        free = (
            (box, reach) for box, reach in tried if inside.holds(box) and not any(box.meets(other) for other in taken)
        )
        chosen = found[place] = next(free, None)
        if chosen is not None:
            taken.append(chosen[0])
    return found


def _around(x: float, y: float, label: str, *, reach: float) -> Iterator[LabelBox]:
    """Places for a name beside, above and below a dot."""
    width = _LETTER * len(label)
    for across, down in _SIDES:
        left = x + across * reach - (width if across < 0 else width / 2 if across == 0 else 0.0)
        middle = y + down * (reach + _LINE / 2 if across == 0 else reach)
        yield LabelBox(left, middle - _LINE / 2, left + width, middle + _LINE / 2)


def _draw_content(chart: PointChart) -> str:
    points = [point for series in chart.series for point in series.points]
    if not points:
        return ""
    plot = Plot(_fit_across([point.x for point in points]), _fit_upward([point.y for point in points]))
    parts = [plot.draw_grid(chart.x_label, ticks=plot.across.ticks(most_decades=3))]
    parts += [_draw_line(series, plot, is_gain=chart.is_gain) for series in chart.series]
    parts += _draw_labels(points, [colour_of(own.colour) for own in chart.series for _ in own.points], plot)
    parts += [_draw_dots(series, plot) for series in chart.series]
    return "".join(parts)


def _fit_across(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    room = max((high / low) ** _ROOM, 1.05)
    return scale_across(low / room, high * room, is_logarithmic=True, width=WIDTH)


def _fit_upward(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    room = _ROOM * (high - low) or 1.0
    return scale_upward(low - room, high + room, height=HEIGHT)


def _draw_line(series: PointSeries, plot: Plot, *, is_gain: bool) -> str:
    best = join_best(series.points, is_gain=is_gain)
    if len(best) < 2:
        return ""
    dashes = ' stroke-dasharray="5 4"' if series.is_hollow else ""
    where = plot.join((point.x, point.y) for point in best)
    return f'<polyline points="{where}" fill="none" stroke="{colour_of(series.colour)}" stroke-width="1.4"{dashes}/>'


def _draw_dots(series: PointSeries, plot: Plot) -> str:
    colour = colour_of(series.colour)
    dots = "".join(
        f'<circle cx="{plot.across.place(point.x):.1f}" cy="{plot.upward.place(point.y):.1f}" r="{_RADIUS}">'
        f"<title>{text(point.hint or point.label)}</title></circle>"
        for point in series.points
    )
    fill = "var(--sheet)" if series.is_hollow else colour
    return f'<g fill="{fill}" stroke="{colour}" stroke-width="1.4">{dots}</g>'


def _draw_labels(points: Sequence[NamedPoint], colours: Sequence[str], plot: Plot) -> Iterator[str]:
    dots = [(plot.across.place(point.x), plot.upward.place(point.y)) for point in points]
    inside = LabelBox(plot.across.start, plot.upward.end, plot.across.end, plot.upward.start)
    places = place_labels(dots, [point.label for point in points], inside=inside)
    for point, (x, y), place, colour in zip(points, dots, places, colours, strict=True):
        if place is None:
            continue
        box, reach = place
        if reach > _REACHES[0]:
            end = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
            yield f'<path d="M{x:.1f} {y:.1f}L{end[0]:.1f} {end[1]:.1f}" stroke="var(--faint)" stroke-width="0.6"/>'
        halo = 'stroke="var(--sheet)" stroke-width="3" paint-order="stroke" stroke-linejoin="round"'
        anchor, at = ("start", box.left) if box.left > x else ("end", box.right) if box.right < x else ("middle", x)
        yield (
            f'<text x="{at:.1f}" y="{box.bottom - 2.5:.1f}" text-anchor="{anchor}" '
            f'font-size="11" fill="{colour}" {halo}>{text(point.label)}</text>'
        )


def _keys_of(chart: PointChart) -> list[Key]:
    return list({series.label: Key(series.label, colour_of(series.colour)) for series in chart.series}.values())


def _draw_keys(keys: Sequence[Key], *, y: float) -> Iterator[str]:
    """The names of series beside their colours, in a line."""
    x = 12.0
    for key in keys:
        yield f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="{key.colour}"/>'
        yield f'<text x="{x + 9}" y="{y + 4}" {TEXT}>{text(key.label)}</text>'
        x += 32 + _LETTER * len(key.label)
