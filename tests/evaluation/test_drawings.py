"""Pictures of embeddings are written, with many classes and several models, and errors are one line."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from vitrail.evaluation.drawings import draw_energies, draw_planes


def colours_of(path: Path) -> int:
    with Image.open(path) as image:
        return len(image.convert("RGB").getcolors(1_000_000) or ())


def test_planes_have_a_panel_for_each_model_and_a_legend_where_it_fits(tmp_path: Path) -> None:
    places = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 3 - 1  # -1 is grey
    one = draw_planes({"a": places}, labels, ["cat", "dog"], tmp_path / "one.png")
    four = draw_planes(dict.fromkeys("abcd", places), labels, ["cat", "dog"], tmp_path / "four.png")
    many = draw_planes({"a": places}, torch.arange(60), [f"class {i}" for i in range(60)], tmp_path / "many.png")
    with Image.open(one) as single, Image.open(four) as several, Image.open(many) as unnamed:
        assert several.width > 2 * single.width - 600
        assert several.height > 1.8 * single.height
        assert unnamed.width < single.width  # without a legend
    assert colours_of(many) > colours_of(one) > 3


def test_a_few_of_many_classes_have_a_colour_each(tmp_path: Path) -> None:
    places, labels = torch.randn(60, 2), torch.tensor([3, 23, 33]).repeat(20)
    path = draw_planes({"a": places}, labels, [f"class {i}" for i in range(40)], tmp_path / "few.png")
    with Image.open(path) as image:
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(1_000_000) or ()}
    assert all(counts.get(colour, 0) > 100 for colour in ((31, 119, 180), (255, 127, 14), (44, 160, 44)))


def test_all_but_the_classes_in_focus_are_grey(tmp_path: Path) -> None:
    places, labels = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    path = draw_planes({"a": places}, labels, ["cat", "dog", "bird"], tmp_path / "one.png", focus=[1])
    with Image.open(path) as image:
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(1_000_000) or ()}
    assert counts[31, 119, 180] > 100  # the first colour
    assert counts[200, 204, 210] > 100
    assert (255, 127, 14) not in counts  # no second


def test_each_energy_curve_is_drawn(tmp_path: Path) -> None:
    curve = torch.linspace(0.1, 1.0, 10)
    one = draw_energies({"a": curve}, tmp_path / "one.png")
    two = draw_energies({"a": curve, "b": curve.square()}, tmp_path / "two.png")
    assert colours_of(two) > colours_of(one)
    with pytest.raises(ValueError, match="the picture can't be written to"):
        draw_energies({"a": curve}, tmp_path / "nothing" / "energy.png")
