"""Samples that are named by number or by file."""

from pathlib import Path

import pytest
from PIL import Image

import vitrail
from vitrail.evaluation.find_samples import find_samples


def test_samples_are_found_by_number_path_and_the_end_of_a_path(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / "val" / name).mkdir(parents=True)
        for number in (1, 2):
            Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "val" / name / f"{name[0] * number}{number}.png")
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "val" / name / "same.png")
    data = vitrail.open_dataset(str(tmp_path / "photos"), "val")
    places: list[int | str] = [3, data.locate(1), "cat/same.png", "dd2.png"]
    found = find_samples(data, places)
    assert found[:2] == [3, 1]
    assert [Path(data.locate(place)).name for place in found[2:]] == ["same.png", "dd2.png"]
    wrong: list[tuple[int | str, str]] = [
        (6, "val of photos has the images 0 to 5, not 6"),
        (-1, "val of photos has the images 0 to 5, not -1"),
        ("d2.png", "val of photos has no file 'd2.png'; its first is"),
        ("same.png", "val of photos has 2 files 'same.png': write more of the path, as"),
        (True, "an image of val of photos is named by its file or its number, not by True"),
    ]
    for wanted, message in wrong:
        with pytest.raises(ValueError, match=message):
            find_samples(data, [wanted])
