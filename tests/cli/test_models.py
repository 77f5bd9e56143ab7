"""`vitrail models`: a table for people, JSON for machines, both straight from the catalogue."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vitrail.cli import main
from vitrail.cli.models import _lay_out
from vitrail.models import catalog
from vitrail.models.catalog import CATALOG, CatalogEntry
from vitrail.models.figures import SETUPS, Figures, Result, Speed


@pytest.fixture
def small_catalog(monkeypatch: pytest.MonkeyPatch) -> dict[str, CatalogEntry]:
    """A catalogue of one well documented model, and one about which nothing is published."""
    figures = Figures(
        source="table 1",
        parameters="22.0",
        flops={224: "4.6", 288: "7.7"},
        drop_path=0.05,
        layer_scale=1e-5,
        results=(
            Result(224, "ImageNet-1k, plain", 9.9, 84.0, 70.0, "table 1"),
            Result(224, "ImageNet-1k, distilled", 81.0, 85.0, 71.0, "table 2"),
            Result(224, "ImageNet-21k -> 1k", 83.0, None, None, "table 3"),
            Result(384, "ImageNet-1k, plain", 82.53, None, 72.0, "table 1"),
        ),
        speeds=(Speed(224, "1891", "987", "a", "table 1"), Speed(384, "85.9", None, "c", "table 2")),
    )
    entries = [
        CatalogEntry("one_small", "vit", {"dim": 384, "depth": 12}, figures),
        CatalogEntry("two_small", "vit", {"dim": 192, "depth": 6, "num_branches": 2}, None),
    ]
    table = {entry.name: entry for entry in entries}
    monkeypatch.setattr(catalog, "CATALOG", table)
    return table


def test_every_name_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    first_words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert set(CATALOG) <= first_words


def test_pattern_selects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "cait_s*"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("cait_s24", "cait_s36", "cait_s48"))
    assert "cait_m24" not in out
    assert "\x1b" not in out


@pytest.mark.usefixtures("small_catalog")
def test_table_has_the_best_result_of_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines if line.startswith(("one_small", "two_small"))]
    at_224 = "one_small 12 384 22.0 0.05 1e-5 224 4.6 1891a 987a"
    assert table == [
        f"{at_224} 81.0 85.0 71.0 distilled".split(),
        f"{at_224} 83.0* ImageNet-21k -> 1k".split(),
        ["one_small", "12", "384", "22.0", "0.05", "1e-5", "288", "7.7"],
        ["one_small", "12", "384", "22.0", "0.05", "1e-5", "384", "85.9c", "82.53", "72.0", "plain"],
        ["two_small", "6x2", "192"],
    ]
    assert lines[-2:] == [f"  a  {SETUPS['a']}", f"  c  {SETUPS['c']}"]


def heading_and_lines(width: int | None) -> tuple[list[str], list[str]]:
    lines = [line for line, _ in _lay_out(list(CATALOG.values()), width=width)]
    return next(line for line in lines if line.startswith("model")).split(), lines


def test_a_file_and_a_wide_terminal_get_every_column() -> None:
    everything = [
        "model",
        "blocks",
        "width",
        "params",
        "path",
        "Scale",
        "image",
        "FLOPs",
        "im/s",
        "MB",
        "top-1",
        "ReaL",
        "V2",
        "weights",
        "training",
    ]
    assert heading_and_lines(None)[0] == heading_and_lines(230)[0] == everything


def test_eighty_columns_hold_all_figures() -> None:
    heading, lines = heading_and_lines(80)
    assert heading == ["model", "params", "path", "image", "FLOPs", "top-1", "ReaL", "V2", "weights"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [70, 55, 10])
def test_a_narrow_terminal_loses_columns_but_no_name(width: int) -> None:
    heading, lines = heading_and_lines(width)
    assert max(map(len, lines)) <= width or heading == ["model", "params", "image", "FLOPs", "top-1"]
    assert set(CATALOG) <= {line.split()[0] for line in lines if line}


def test_json_has_every_row_and_setting(
    small_catalog: dict[str, CatalogEntry], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    assert (one["name"], one["family"], one["settings"]) == ("one_small", "vit", {"dim": 384, "depth": 12})
    assert one["figures"]["parameters"] == 22.0
    assert one["figures"]["flops"] == {"224": 4.6, "288": 7.7}
    assert one["figures"]["layer_scale"] == 1e-5
    assert small_catalog["one_small"].figures is not None
    assert one["figures"]["results"] == [result._asdict() for result in small_catalog["one_small"].figures.results]
    assert one["figures"]["speeds"][0]["throughput"] == 1891
    assert one["figures"]["speeds"][1]["setup"] == SETUPS["c"]
    assert two["figures"] is None


def test_json_of_the_whole_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert list(records) == list(CATALOG)
    transfer = {"what": "fine-tuned on cars", "value": 93.8, "unit": "% top-1", "source": "Three things table 6"}
    assert transfer in records["vit_l24"]["scores"]
    assert records["vit_s9x4"]["scores"] == []


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("cait", "no model is named 'cait'; did you mean 'cait*'?"),
        ("caitt_s24", "no model matches 'caitt_s24'; nearest names: cait_s24"),
        ("resmpl*", "nearest names: resmlp_"),
        ("quuxquux", "`vitrail models` lists them all"),
    ],
)
def test_an_unknown_pattern_is_one_line_with_the_nearest_names(
    pattern: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", pattern]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("vitrail: error: ")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("small_catalog")
def test_results_are_drawn_against_each_cost_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.svg"
    assert main(["models", "--plot", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "flops: 2 of 3 published results; the papers print no flops of the others",
        "parameters: 3 of 3 published results",
        "throughput: 2 of 3 published results; the papers print no throughput of the others",
        "memory: 2 of 3 published results; the papers print no memory of the others",
        str(path),
    ]
    hints = [each.text for each in ElementTree.fromstring(path.read_text()).iter("{http://www.w3.org/2000/svg}title")]
    assert hints == [
        "one_small at 224: 81.0 % (ImageNet-1k, distilled; table 2)",
        "one_small at 224: 83.0 % (ImageNet-21k -> 1k; table 3)",
        "one_small at 224: 81.0 % (ImageNet-1k, distilled; table 2)",
        "one_small at 384: 82.53 % (ImageNet-1k, plain; table 1)",
        "one_small at 224: 83.0 % (ImageNet-21k -> 1k; table 3)",
        *2
        * (
            "one_small at 224: 81.0 % (ImageNet-1k, distilled; table 2)",
            "one_small at 224: 83.0 % (ImageNet-21k -> 1k; table 3)",
        ),
    ]


def test_several_patterns_and_one_cost_are_drawn_in_a_page(tmp_path: Path) -> None:
    path = tmp_path / "models.html"
    assert main(["models", "cait_m*", "deit_base", "--plot", str(path), "--against", "parameters"]) == 0
    page = path.read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', page) == ["parameters"]
    assert re.findall(r"</i>([^<]+)</span>", page) == ["deit", "cait"]
    assert "cait_m48 at 448: 86.5 %" in page
    assert "cait_s24" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plot", "models.png"], "models.png is no name of a page or picture: let it end with .html or .svg"),
        (["--plot", "nowhere/models.svg"], "nowhere/models.svg can't be written: No such file or directory"),
        (
            ["--plot", "models.svg", "--against", "price"],
            "accuracy is drawn against one of flops, parameters, throughput, memory, not",
        ),
        (["vit_ti6x2", "--plot", "models.svg"], "there is nothing to draw: the papers print no accuracy with its cost"),
        (["--plot", "models.svg", "--json"], "--plot draws and --json prints: ask for one of them"),
        (["--against", "flops"], "--against says what to draw accuracy against: add --plot FILE"),
    ],
)
def test_what_can_not_be_drawn_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["models", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
