"""Ranked lists as a picture, and the plane of t-SNE."""

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageColor

from vitrail.evaluation.ranked_lists import RankedList, draw_ranked_lists, judge, level_colours, save_ranked_lists
from vitrail.evaluation.scatter import project_to_plane

WHITE, GREEN, ORANGE, GREY = (255, 255, 255), (34, 163, 74), (240, 140, 0), (138, 143, 152)


def test_frames_say_how_right_a_result_is() -> None:
    assert judge(("beagle", "dog"), ("beagle", "dog")) == 0
    assert judge(("beagle", "dog"), ("poodle", "dog")) == 1
    assert judge(("beagle", "dog"), ("siamese", "cat")) is None
    assert judge((None, None), (None, None)) is None
    assert judge(("beagle", None, "animal"), ("poodle", None, "animal")) == 2
    black = Image.new("L", (30, 20))
    found = [(black, 0), (black, 1), (None, None)]
    sheet = draw_ranked_lists([RankedList(black, "a dog", found), RankedList(black, "another", found[:1])])
    colours = {colour for _, colour in sheet.getcolors(100_000) or ()}
    assert {WHITE, GREEN, ORANGE, GREY, (0, 0, 0)} <= colours


def test_each_of_many_levels_has_a_colour_of_its_own() -> None:
    assert level_colours(1) == ["#22a34a"]
    assert level_colours(2) == ["#22a34a", "#f08c00"]
    for count in range(3, 8):
        assert len(set(level_colours(count))) == count
    found = [(None, level) for level in (0, 1, 2, 3, None)]
    row = RankedList(Image.new("L", (8, 8)), "", found)
    sheet = draw_ranked_lists([row], levels=("species", "genus", "family", "order"))
    colours = {colour for _, colour in sheet.getcolors(100_000) or ()}
    assert {ImageColor.getrgb(colour) for colour in level_colours(4)} <= colours


def test_a_file_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    row = RankedList(Image.new("RGB", (4, 4)), "", [])
    assert save_ranked_lists([row], tmp_path / "lists.png").is_file()
    with pytest.raises(ValueError, match="the ranked lists can't be written"):
        save_ranked_lists([row], tmp_path / "nothing" / "lists.png")
    with pytest.raises(ValueError, match="no ranked list"):
        draw_ranked_lists([])


def test_tsne_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ValueError, match="t-SNE needs scikit-learn: pip install scikit-learn"):
        project_to_plane(torch.randn(20, 3))


def test_tsne_gives_two_numbers_an_image() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    groups = torch.eye(4)[torch.arange(40) % 4] + 0.01 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    places = project_to_plane(groups)
    assert places.shape == (40, 2)
    with pytest.raises(ValueError, match="at least 5 embeddings"):
        project_to_plane(groups[:3])
