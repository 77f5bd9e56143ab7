import csv
import io

from vitrail.storage import csv_text


def test_names_that_look_like_formulas_are_text_and_numbers_stay_numbers() -> None:
    rows: list[dict[str, object]] = [{"name": "=1+1", "value": -2.5}, {"name": "@x"}, {"name": 'a, "b"', "value": None}]
    written = csv_text(rows, columns=("name", "value"))
    assert list(csv.reader(io.StringIO(written))) == [["name", "value"], ["'=1+1", "-2.5"], ["'@x", ""], ['a, "b"', ""]]
