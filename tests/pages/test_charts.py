"""Charts: what is drawn, where it stands, and what is left out."""

import math
import re
from xml.etree import ElementTree

import pytest

from vitrail.pages.axes import name_number, scale_across, scale_upward
from vitrail.pages.bars import BarRow, draw_bars, draw_histogram
from vitrail.pages.charts import Axis, Band, Curve, LineChart, draw_chart, draw_document, smooth

EVIL = "<script>\"'&"
EPOCHS = Axis("epoch", low=0.0, high=4.0)


def drawn(chart: LineChart) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", draw_chart(chart))
    assert found is not None
    return ElementTree.fromstring(found[0])


def texts(drawing: ElementTree.Element) -> list[str | None]:
    return [each.text for each in drawing.iter("text")]


def test_points_stand_where_the_scales_say() -> None:
    across, upward = scale_across(0.0, 4.0), scale_upward(0.0, 10.0)
    assert across.place(2.0) == (across.start + across.end) / 2
    assert upward.place(10.0) < upward.place(0.0)
    assert upward.place(99.0) == upward.end  # never outside the chart
    chart = LineChart("top-1", [Curve([0.0, 2.0, 4.0], [1.0, 5.0, 10.0])], EPOCHS, from_zero=True, limit=10.0)
    line = drawn(chart).find(".//polyline")
    assert line is not None
    ends = [f"{across.place(x):.1f},{upward.place(y):.1f}" for x, y in ((0, 1), (2, 5), (4, 10))]
    assert line.get("points") == " ".join(ends)


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0.0, 100.0, ["0", "20", "40", "60", "80", "100"]),
        (0.0, 3e-5, ["0", "5e-6", "1e-5", "1.5e-5", "2e-5", "2.5e-5", "3e-5"]),
        (-0.01, 0.01, ["-0.01", "-5e-3", "0", "5e-3", "0.01"]),
    ],
)
def test_ticks_are_round(low: float, high: float, names: list[str]) -> None:
    assert [name for _, name in scale_upward(low, high).ticks()] == names


def test_ticks_of_a_logarithmic_scale_and_of_whole_numbers() -> None:
    assert [name for _, name in scale_across(0.5, 3000.0, is_logarithmic=True).ticks()] == ["1", "10", "100", "1000"]
    assert [value for value, _ in scale_across(1.0, 3.0).ticks(only_whole=True)] == [1.0, 2.0, 3.0]
    assert [name_number(value) for value in (0.0, 0.25, 1e-5, 123456.0)] == ["0", "0.25", "1e-5", "1.2e5"]


def test_values_far_apart_are_drawn_on_a_logarithmic_scale_unless_it_begins_at_zero() -> None:
    curve = Curve([1.0, 2.0], [0.001, 10.0])
    assert "0.1" in texts(drawn(LineChart("loss", [curve], EPOCHS)))
    assert "0.1" not in texts(drawn(LineChart("loss", [curve], EPOCHS, from_zero=True)))


def test_values_that_hardly_differ_do_not_get_ticks_of_many_digits() -> None:
    drawing = drawn(LineChart("loss", [Curve([1.0, 2.0], [3.18006, 3.18014])], EPOCHS))
    assert all(len(name or "") <= 5 for name in texts(drawing))


def test_what_is_missing_or_not_finite_is_left_out() -> None:
    curve = Curve([0.0, 1.0, 2.0, 3.0, math.nan], [1.0, None, math.inf, 4.0, 5.0])
    assert curve.points() == [(0.0, 1.0), (3.0, 4.0)]
    assert Band([0.0, 1.0], [math.nan, 1.0], [2.0, 2.0]).points() == [(1.0, 1.0, 2.0)]
    assert "<svg" not in draw_chart(LineChart("loss", [Curve([1.0], [math.nan])], EPOCHS))


def test_a_long_curve_is_thinned_out_to_means_and_dots_are_not() -> None:
    x = [float(number) for number in range(900)]
    assert Curve(x, x).points() == [(3.0 * place + 1, 3.0 * place + 1) for place in range(300)]
    assert len(Curve(x, x, style="dots").points()) == 900


def test_smoothing_keeps_a_line_and_flattens_a_spike() -> None:
    x = [float(number) for number in range(100)]
    line = smooth(Curve(x, x, label="loss", style="faint"))
    assert line.label == "loss"
    assert line.style == "line"
    assert line.y[50] == pytest.approx(50.0)
    assert max(value or 0.0 for value in smooth(Curve(x, [9.0 * (each == 50) for each in x])).y) == pytest.approx(9 / 5)


def test_names_are_in_the_legend_once_and_one_alone_is_not() -> None:
    curves = [Curve([1.0], [1.0], "top-1"), Curve([2.0], [2.0], "top-1"), Curve([1.0], [3.0], "coarse", colour=1)]
    chart = draw_chart(LineChart("accuracy", curves, EPOCHS, level=(2.0, "by chance")))
    assert re.findall(r"</i>([^<]+)</span>", chart) == ["top-1", "coarse", "by chance"]
    assert 'class="legend"' not in draw_chart(LineChart("accuracy", curves[:2], EPOCHS))


def test_whatever_is_named_is_escaped() -> None:
    curves = [Curve([0.0, 1.0], [0.0, 1.0], EVIL), Curve([0.0, 1.0], [1.0, 0.0], "b")]
    axis = Axis(EVIL, ticks=[(0.0, EVIL)])
    chart = LineChart(EVIL, curves, axis, marks=[(0.5, EVIL)], level=(0.5, EVIL))
    bars = draw_bars([BarRow(EVIL, [1.0], EVIL, EVIL)], most=1.0, noun=EVIL)
    histogram = draw_histogram([1], edges=[0.0, 1.0], label=EVIL, describe=lambda _: EVIL)
    for drawing in (draw_chart(chart), draw_document([[chart]]), bars, histogram):
        assert "<script" not in drawing
        ElementTree.fromstring(drawing)


def test_a_file_of_its_own_has_every_chart_and_legend_and_no_variables() -> None:
    curves = [Curve([0.0, 1.0], [0.0, 1.0], "a"), Curve([0.0, 1.0], [1.0, 0.0], "b", style="dots")]
    document = draw_document([[LineChart("one", curves, EPOCHS), LineChart("two", curves, EPOCHS)]])
    drawing = ElementTree.fromstring(document)
    names = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert [name for name in names if name in ("one", "two", "a", "b")] == ["one", "two", "a", "b"]
    assert "var(" not in document
    assert "#2f6db5" in document  # the first colour of light pages


def test_of_very_many_rows_of_bars_the_first_and_the_last_are_drawn() -> None:
    rows = [BarRow(f"class {number}", [number], str(number)) for number in range(100)]
    drawing = draw_bars(rows, most=99.0, noun="classes")
    assert "… 40 classes between …" in drawing
    assert re.findall(r">class (\d+)<", drawing) == [str(number) for number in (*range(30), *range(70, 100))]
    assert 'style="width:100.0%' in drawing


def test_bars_without_any_value_are_drawn_empty() -> None:
    assert 'style="width:0.0%' in draw_bars([BarRow("a", [0.0], "0")], most=0.0, noun="classes")


def test_a_histogram_has_a_bar_for_each_range_that_has_any() -> None:
    drawing = draw_histogram(
        [1000, 0, 1], edges=[0.0, 1.0, 2.0, 3.0], label="size", describe=lambda place: f"bar {place}"
    )
    boxes = list(ElementTree.fromstring(drawing).iter("rect"))
    assert [box.findtext("title") for box in boxes] == ["bar 0", "bar 2"]
    assert float(boxes[1].get("height", "0")) > 1  # one of a thousand can be seen
