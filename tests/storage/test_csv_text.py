import csv
import io

import pytest

from vitrail.storage import csv_text
from vitrail.storage.csv_text import bare_cell, guard_cell


def test_names_that_look_like_formulas_are_text_and_numbers_stay_numbers() -> None:
    rows: list[dict[str, object]] = [{"name": "=1+1", "value": -2.5}, {"name": "@x"}, {"name": 'a, "b"', "value": None}]
    written = csv_text(rows, columns=("name", "value"))
    assert list(csv.reader(io.StringIO(written))) == [["name", "value"], ["'=1+1", "-2.5"], ["'@x", ""], ['a, "b"', ""]]


@pytest.mark.parametrize("number", ["-0.5", "+3", "-1e-05", "-.5", "-nan", "-inf", "-7."])
def test_numbers_that_are_text_already_stay_numbers(number: str) -> None:
    assert guard_cell(number) == number


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+x", "-x.jpg", "@a", "\ta", "'=a", "''-b", "'a", "a=b", "", "-"]
)
def test_a_guarded_cell_begins_as_no_formula_and_can_be_read_back(name: str) -> None:
    guarded = guard_cell(name)
    assert isinstance(guarded, str)
    assert not guarded.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert bare_cell(guarded) == name
