"""Charts of named points: which are joined, and names that cover neither each other nor a dot."""

import random
from xml.etree import ElementTree

from vitrail.pages.point_charts import (
    LabelBox,
    NamedPoint,
    PointChart,
    PointSeries,
    draw_points_document,
    join_best,
    place_labels,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_a_line_goes_over_what_nothing_cheaper_equals() -> None:
    points = [NamedPoint(x, y, "") for x, y in ((4, 80), (1, 72), (2, 79), (3, 79), (2, 78), (5, 79.5))]
    assert [(point.x, point.y) for point in join_best(points)] == [(1, 72), (2, 79), (4, 80)]
    assert [(point.x, point.y) for point in join_best(points, is_gain=True)] == [(5, 79.5), (4, 80)]


def test_names_meet_neither_each_other_nor_dots_and_stay_inside() -> None:
    draw = random.Random(0)
    inside = LabelBox(50, 10, 350, 210)
    dots = [(draw.uniform(60, 340), draw.uniform(20, 200)) for _ in range(60)]
    found = place_labels(dots, [f"name {number}" for number in range(60)], inside=inside)
    boxes = [place[0] for place in found if place is not None]
    assert 10 < len(boxes) < 60  # there is no room for all
    assert all(map(inside.holds, boxes))
    assert not any(box.meets(other) for number, box in enumerate(boxes) for other in boxes[:number])
    assert not any(box.left < x < box.right and box.top < y < box.bottom for box in boxes for x, y in dots)


def test_a_dot_alone_has_its_name_on_its_right() -> None:
    ((box, reach),) = filter(None, place_labels([(100, 100)], ["abc"], inside=LabelBox(0, 0, 200, 200)))
    assert (box.left, (box.top + box.bottom) / 2) == (100 + reach, 100)


def test_costs_stand_on_a_logarithmic_axis_and_each_name_is_in_the_legend_once() -> None:
    small, large = (
        [NamedPoint(x, y, f"<{x}>") for x, y in own] for own in (((1, 70), (10, 75), (100, 80)), ((10, 76),))
    )
    series = [PointSeries("cait", small), PointSeries("cait", large, is_hollow=True), PointSeries("deit", [])]
    drawing = ElementTree.fromstring(draw_points_document([PointChart("top-1", "FLOPs", series)]))
    first, second, third, hollow = (float(dot.get("cx", "")) for dot in drawing.iter(f"{SVG}circle") if len(dot))
    assert abs((second - first) - (third - second)) < 0.2
    assert hollow == second
    names = [each.text for each in drawing.iter(f"{SVG}text")]
    assert names.count("cait") == 1
    assert "<100>" in names
    assert len(list(drawing.iter(f"{SVG}polyline"))) == 1  # one point alone has no line
