"""`compare_inspections`: curves of several models over each other, and their numbers side by side."""

from pathlib import Path

import pytest
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail.inspection.comparison import InspectionComparison, compare_inspections
from vitrail.inspection.inspection import Inspection
from vitrail.pages.charts import LineChart

HISTORY = [
    {"kind": "layers", "stage": 0, "step": step, "epoch": float(step), "ratios": {"self-attention": [0.1, 0.2]}}
    for step in (1, 2, 3)
]


def look(name: str, **settings: object) -> Inspection:
    model = randomize(small_model(name, **settings)).eval()
    records = HISTORY if settings else ()
    return vitrail.inspect_model(model, images_for(model, batch=3), records=records)


@pytest.fixture(scope="module")
def both() -> InspectionComparison:
    return compare_inspections({"plain": look("deit_tiny"), "scaled": look("deit_tiny", depth=3, layer_scale=0.1)})


def charts_of(found: InspectionComparison, name: str) -> dict[str, LineChart]:
    return {chart.title: chart for row in found.part(name).chart or () for chart in row}


def test_each_quantity_is_a_chart_with_a_colour_for_each_model(both: InspectionComparison) -> None:
    errors = charts_of(both, "parallel")
    assert list(errors) == ["Self-attention: relative error", "Feed-forward: relative error"]
    curves = errors["Feed-forward: relative error"].curves
    assert [(curve.label, curve.colour, len(curve.x)) for curve in curves] == [("plain", 0, 2), ("scaled", 1, 3)]
    assert errors["Feed-forward: relative error"].x.high == 3.5  # as deep as the deepest
    (distance,) = charts_of(both, "attention_distance").values()
    assert [curve.style for curve in distance.curves] == ["line", "line"]  # the dots of heads are left out
    assert distance.level is not None


def test_epochs_of_a_run_are_shades_of_its_colour(both: InspectionComparison) -> None:
    curves = charts_of(both, "ratios")["Self-attention: ratio of norms"].curves
    assert [(curve.label, curve.colour) for curve in curves] == [("plain", 0), ("", 1), ("", 1), ("scaled", 1)]
    shades = [curve.opacity for curve in curves[1:]]
    assert shades == sorted(shades)
    assert curves[-1].y == [0.1, 0.2]
    stacked = both.part("ratios").more["ratios_by_epoch"]
    assert stacked.columns[0] == "run"
    assert stacked.rows[0][:4] == ("scaled", 1, 1, 1.0)


def test_numbers_stand_side_by_side(both: InspectionComparison) -> None:
    table = both.part("parallel").table
    assert table is not None
    assert table.columns == (
        "layer",
        *("self-attention, plain", "self-attention, scaled", "feed-forward, plain", "feed-forward, scaled"),
    )
    own = both.inspections["scaled"].part("parallel").table
    assert own is not None
    assert [row[::2] for row in table.rows] == [(row[0], *row[1:]) for row in own.rows]
    assert table.rows[2][1::2] == (None, None)  # the other model has no third block
    heads = both.part("attention_distance").table
    assert heads is not None
    assert heads.columns == ("layer", "mean, plain", "mean, scaled")


def test_a_part_that_one_model_lacks_is_the_others(both: InspectionComparison) -> None:
    scales = both.part("layer_scale")
    assert scales.finding.startswith("plain: not available, deit_tiny has no LayerScale. scaled: Mean |λ|: ")
    assert scales.table is not None
    assert scales.table.columns[:3] == ("layer", "branch", "mean |λ|, scaled")
    assert [curve.colour for chart in charts_of(both, "layer_scale").values() for curve in chart.curves] == [1, 1]
    assert both.part("class_attention_spread").missing == "deit_tiny has no class-attention"


def test_models_of_other_families_share_a_page(tmp_path: Path) -> None:
    found = compare_inspections({"a <b>": look("resmlp_s12"), "cait": look("cait_xxs24")})
    page = found.write(tmp_path / "seen", data="val of photos").read_text(encoding="utf-8")
    assert "a &lt;b&gt; and cait" in page
    assert "a <b>" not in page
    assert "Images of val of photos." in page
    assert {"ratios.csv", "ratios.svg", "energy_curve.csv"} <= {path.name for path in (tmp_path / "seen").iterdir()}


def test_one_inspection_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="takes at least two inspections, not 0"):
        compare_inspections({})
