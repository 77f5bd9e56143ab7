"""`compare_inspections`: several models' inspections laid over each other (CaiT figure 4, thesis figure 3.6)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.inspection.inspection import Inspection, write_inspection
from vitrail.inspection.inspection_page import render_inspection
from vitrail.inspection.inspection_parts import InspectionPart, find_part
from vitrail.inspection.inspection_table import Cell, InspectionTable
from vitrail.inspection.layer_charts import Chart
from vitrail.pages.charts import Axis, Band, Curve, LineChart

_MOST_BESIDE = 2  # charts in a row


@dataclass(frozen=True)
class InspectionComparison:
    """What was found inside several models, part by part."""

    inspections: Mapping[str, Inspection]  # by the names of the models or runs
    parts: tuple[InspectionPart, ...]

    def part(self, name: str) -> InspectionPart:
        """The part of that name, which may only say why it is missing."""
        return find_part(self.parts, name)

    def write(self, folder: str | os.PathLike[str], *, data: str = "") -> Path:
        """Write `report.html`, a CSV for each table and an SVG for each picture into a folder; gives the page's path.

        `data` is what the page says of where the images come from.
        """
        page = render_inspection(
            " and ".join(self.inspections),
            lead=[*map(_describe, self.inspections.items()), f"Images of {data}." if data else ""],
            facts={},
            parts=self.parts,
        )
        return write_inspection(folder, page=page, parts=self.parts)


def compare_inspections(inspections: Mapping[str, Inspection]) -> InspectionComparison:
    """Lay the curves of each part over each other, a colour for each model, and its numbers side by side.

    The names are those of the legends. Where runs have noted their ratios while they trained, their epochs are drawn,
    the later the stronger. A part that some models do not have is made of the others.
    """
    if len(inspections) < 2:
        raise ValueError(f"a comparison takes at least two inspections, not {len(inspections)}")
    first = next(iter(inspections.values()))
    names = [part.name for part in first.parts]
    return InspectionComparison(dict(inspections), tuple(_compare_part(name, inspections) for name in names))


def _describe(named: tuple[str, Inspection]) -> str:
    name, found = named
    height, width = found.image_size
    model = "" if found.model_name == name else f"{found.model_name}, "
    return (
        f"{name}: {model}{found.num_parameters / 1e6:.1f} M parameters; {found.num_images:,} images of "
        f"{height} x {width} pixels."
    )


def _compare_part(name: str, inspections: Mapping[str, Inspection]) -> InspectionPart:
    parts = {run: found.part(name) for run, found in inspections.items()}
    known = {run: part for run, part in parts.items() if not part.missing}
    said = [f"{run}: {part.finding or f'not available, {part.missing}.'}" for run, part in parts.items()]
    if not known:
        return InspectionPart(name, missing="; ".join(dict.fromkeys(part.missing for part in parts.values())))
    return InspectionPart(
        name,
        finding=" ".join(said),
        table=_join_tables({run: part.table for run, part in known.items() if part.table is not None}),
        chart=_lay_over({run: part.chart or () for run, part in known.items()}, colours=list(inspections)),
        more=_stack_tables({run: part.more for run, part in known.items()}),
    )


def _lay_over(charts: Mapping[str, Chart], *, colours: Sequence[str]) -> list[list[LineChart]]:
    """A chart for each quantity, with the curves of all runs that have it."""
    panels: dict[tuple[str, str], dict[str, LineChart]] = {}
    for run, rows in charts.items():
        for panel in _split_quantities(rows):
            panels.setdefault((panel.title, panel.x.label), {})[run] = panel
    merged = [_merge(own, colours=colours) for own in panels.values()]
    return [merged[start : start + _MOST_BESIDE] for start in range(0, len(merged), _MOST_BESIDE)]


def _split_quantities(rows: Chart) -> Iterator[LineChart]:
    """Charts of one quantity each, without the dots of single heads."""
    for chart in (chart for row in rows for chart in row):
        curves = [curve for curve in chart.curves if curve.style != "dots"]
        course = [curve for curve in curves if curve.style == "line"]
        if len(course) < len(curves):  # epochs of one quantity, and beside them the weights of now
            yield replace(chart, curves=course or curves)
        elif len(curves) == 1:
            yield replace(chart, curves=curves)
        else:
            what = chart.title[0].lower() + chart.title[1:]
            for curve in curves:
                title = f"{curve.label[:1].upper()}{curve.label[1:]}: {what}"
                yield replace(chart, title=title, curves=[curve], bands=())


def _merge(panels: Mapping[str, LineChart], *, colours: Sequence[str]) -> LineChart:
    curves: list[Curve] = []
    bands: list[Band] = []
    for run, panel in panels.items():
        colour = colours.index(run)
        *earlier, last = panel.curves
        curves += [replace(curve, label="", colour=colour) for curve in earlier]
        curves.append(replace(last, label=run, colour=colour))
        bands += [replace(band, colour=colour) for band in panel.bands]
    some = next(iter(panels.values()))
    levels = {panel.level for panel in panels.values()}
    return replace(
        some,
        curves=curves,
        bands=bands,
        x=_widest([panel.x for panel in panels.values()]),
        level=some.level if len(levels) == 1 else None,
    )


def _widest(axes: Sequence[Axis]) -> Axis:
    """The axis of the deepest model."""
    return max(axes, key=lambda axis: axis.high or 0.0)


def _join_tables(tables: Mapping[str, InspectionTable]) -> InspectionTable:
    """Rows of all tables by the words they begin with, each column once for each run; of heads the mean alone."""
    num_words = min(
        next((place for place, cell in enumerate(row) if not isinstance(cell, str)), len(row))
        for table in tables.values()
        for row in table.rows
    )
    some = next(iter(tables.values()))
    columns = list(dict.fromkeys(column for table in tables.values() for column in table.columns[num_words:]))
    if "mean" in columns:
        columns = ["mean"]
    cells: dict[tuple[Cell, ...], dict[tuple[str, str], Cell]] = {}
    for run, table in tables.items():
        for row in table.rows:
            found = dict(zip(table.columns, row, strict=True))
            own = cells.setdefault(row[:num_words], {})
            own.update({(column, run): found.get(column) for column in columns})
    places = [(column, run) for column in columns for run in tables]
    return InspectionTable(
        (*some.columns[:num_words], *(f"{column}, {run}" for column, run in places)),
        tuple((*words, *(own.get(place) for place in places)) for words, own in cells.items()),
    )


def _stack_tables(tables: Mapping[str, Mapping[str, InspectionTable]]) -> dict[str, InspectionTable]:
    """Longer tables of all runs, one below the other."""
    stacked: dict[str, InspectionTable] = {}
    for run, own in tables.items():
        for name, table in own.items():
            before = stacked[name].rows if name in stacked else ()
            rows = tuple((run, *row) for row in table.rows)
            stacked[name] = InspectionTable(("run", *table.columns), (*before, *rows))
    return stacked
