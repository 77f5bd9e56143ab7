"""`plot_models`: what the papers publish about accuracy and cost, as charts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vitrail.models.catalog import get_entry, list_models
from vitrail.models.figures import Figures
from vitrail.models.figures.trade_offs import COSTS, TradeOff, best_results, list_trade_offs, uses_21k
from vitrail.pages.frame import Page, PageSection, render_page
from vitrail.pages.point_charts import NamedPoint, PointChart, PointSeries, draw_points, draw_points_document

_ENDINGS = (".html", ".svg")
_USUAL_SIZE = 224  # pixels: full dots
_DATA = ("ImageNet-1k alone", "ImageNet-21k, then ImageNet-1k")
_NOTES = (
    "The best published top-1 accuracy on ImageNet's validation set of each model and image size, against what the "
    "papers print of its cost. Full dots are at 224 pixels, empty ones at the size behind the @. A line joins the "
    "models of a family that none of it equals at the same or a lower cost.",
    "Point at a dot to read its training and the table it comes from. A name without room is left out.",
)


def plot_models(
    path: str | os.PathLike[str], *, models: Iterable[str] | None = None, against: str | None = None
) -> dict[str, tuple[int, int]]:
    """Draw accuracy against cost into a page (`.html`) or a picture (`.svg`); thesis figures 5.2, 5.7 and 6.4.

    `models` are names of the catalogue, all unless given; `against` is one of COSTS, all of them unless given. Gives
    for each cost how many results are drawn and how many are published: without a printed cost there is no point.
    """
    place = Path(path).expanduser()
    if place.suffix.lower() not in _ENDINGS:
        raise ValueError(f"{path} is no name of a page or picture: let it end with {' or '.join(_ENDINGS)}")
    published = _find_published(models)
    charts = {cost: _draw_cost(published, cost) for cost in (COSTS if against is None else (against,))}
    counts = {cost: sum(len(series.points) for one in own for series in one.series) for cost, own in charts.items()}
    if not any(counts.values()):
        raise ValueError("there is nothing to draw: the papers print no accuracy with its cost for these models")
    drawn = [chart for own in charts.values() for chart in own]
    content = draw_points_document(drawn) if place.suffix.lower() == ".svg" else _render(charts)
    try:
        place.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{place} can't be written: {error.strerror}") from None
    num_results = sum(len(best_results(figures)) for figures in published.values())
    return {cost: (count, num_results) for cost, count in counts.items()}


def _find_published(models: Iterable[str] | None) -> dict[str, Figures]:
    wanted = set(list_models()) if models is None else {get_entry(name).name for name in models}
    entries = [get_entry(name) for name in list_models() if name in wanted]
    return {entry.name: entry.figures for entry in entries if entry.figures is not None}


def _draw_cost(published: Mapping[str, Figures], cost: str) -> list[PointChart]:
    """A chart for each kind of data that there are results with."""
    points = list_trade_offs(published, cost)
    families = list(dict.fromkeys(map(_family_of, published)))
    charts = []
    for name, is_21k in zip(_DATA, (False, True), strict=True):
        own = [point for point in points if uses_21k(point.result) is is_21k]
        if own:
            what, series = COSTS[cost], _group(own, families)
            charts.append(PointChart(f"Top-1 accuracy in %, {name}", what.label, series, is_gain=what.is_gain))
    return charts


def _group(points: Sequence[TradeOff], families: Sequence[str]) -> list[PointSeries]:
    """A series for each family and image size, in the family's colour."""
    groups: dict[tuple[str, int], list[NamedPoint]] = {}
    for point in points:
        key = _family_of(point.model), point.result.image_size
        groups.setdefault(key, []).append(_name_point(point))
    return [
        PointSeries(family, own, colour=families.index(family), is_hollow=size != _USUAL_SIZE)
        for (family, size), own in sorted(groups.items(), key=lambda group: (families.index(group[0][0]), group[0][1]))
    ]


def _name_point(point: TradeOff) -> NamedPoint:
    result = point.result
    short = point.model.partition("_")[2].removesuffix("_distilled")
    label = short if result.image_size == _USUAL_SIZE else f"{short}@{result.image_size}"
    hint = f"{point.model} at {result.image_size}: {result.top1} % ({result.training}; {result.source})"
    return NamedPoint(point.cost, result.top1, label, hint)


def _family_of(model: str) -> str:
    return model.partition("_")[0] + (" distilled" if model.endswith("_distilled") else "")


def _render(charts: Mapping[str, Sequence[PointChart]]) -> str:
    sections = [
        PageSection(f"Accuracy and {cost}", "".join(map(draw_points, own)), anchor=cost)
        for cost, own in charts.items()
        if own
    ]
    return render_page(
        Page(title="Accuracy against cost", kicker="vitrail models --plot", lead=_NOTES, sections=sections)
    )
