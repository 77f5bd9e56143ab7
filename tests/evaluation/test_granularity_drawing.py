"""The chart over granularity: which lines there are, where they stand, and what they are called."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from vitrail.evaluation import granularity_drawing
from vitrail.evaluation.granularity_drawing import LevelledRun, draw_granularity, find_method

LEVELS = ["family", "genus", "species"]


def run(method: str, level: str | None, *, plus: float = 0.0) -> LevelledRun:
    """A run whose figure at each test level is that level's number in tens."""
    figures = {name: {"top1": 10.0 * place + plus, "map_cosine": 1.0} for place, name in enumerate(LEVELS)}
    return LevelledRun(f"{method}_{level}", method, level, figures)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, instead of files."""
    drawn: list[Figure] = []

    def note(figure: Figure, path: Path) -> Path:
        drawn.append(figure)
        return path

    monkeypatch.setattr(granularity_drawing, "save_figure", note)
    return drawn


def lines_of(figure: Figure, place: int) -> dict[str, list[tuple[float, float]]]:
    found = {}
    for line in figure.axes[place].lines:
        points = np.asarray(line.get_xydata()).tolist()
        found[f"{line.get_label()} {line.get_linestyle()}"] = [(x, y) for x, y in points]
    return found


def test_methods_are_lines_over_training_levels(figures: list[Figure], tmp_path: Path) -> None:
    runs = [run("grafit", "family"), run("grafit", "species", plus=1), run("snca", "genus"), run("snca", "∅", plus=5)]
    draw_granularity([*runs, run("snca", "genus", plus=2), run("timm", None, plus=3)], LEVELS, tmp_path / "a.png")
    assert lines_of(figures[0], 0) == {
        "grafit -": [(0, 0.0), (2, 21.0)],
        "snca -": [(1, 11.0)],  # the mean of two
        "snca --": [(0, 5.0), (1, 15.0), (2, 25.0)],
        "timm --": [(0, 3.0), (1, 13.0), (2, 23.0)],
    }
    assert lines_of(figures[0], 1) == {
        "grafit -": [(1, 20.0), (3, 21.0)],
        "snca -": [(0, 25.0), (2, 21.0)],
        "timm --": [(0, 23.0), (1, 23.0), (2, 23.0), (3, 23.0)],
    }
    assert [label.get_text() for label in figures[0].axes[1].get_xticklabels()] == ["∅", *LEVELS]


def test_runs_of_one_level_each_are_lines_over_test_levels(figures: list[Figure], tmp_path: Path) -> None:
    draw_granularity([run("grafit", "genus"), run("snca", "genus", plus=1)], LEVELS, tmp_path / "a.png")
    assert len(figures[0].axes) == 2  # kNN and mAP
    assert lines_of(figures[0], 0)["snca_genus -"] == [(0, 1.0), (1, 11.0), (2, 21.0)]


def test_a_method_is_the_name_of_a_run_without_its_level(tmp_path: Path) -> None:
    assert find_method("grafit_genus", "genus") == "grafit"
    assert find_method("genus-grafit", "genus") == "grafit"
    assert find_method("genus", "genus") == "runs"
    assert find_method("timm_backbone", None) == "timm_backbone"
    with pytest.raises(ValueError, match="there is no run to draw"):
        draw_granularity([], LEVELS, tmp_path / "a.png")
    assert draw_granularity([run("grafit", "genus")], LEVELS, tmp_path / "a.png").is_file()
