"""`vitrail recipes`: a table, a recipe as YAML, and a copy that never overwrites."""

from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.cli.recipes import _lay_out, _row
from vitrail.recipes import RECIPES, get_recipe
from vitrail.settings.text import read_recipe

# Rows of one paper: how wide their table is does not depend on what other papers add.
DEIT = [name for name, entry in RECIPES.items() if entry.function.__module__.endswith(".deit")]


def lines_of(width: int | None) -> list[str]:
    rows = [_row(get_recipe(name), RECIPES[name]) for name in DEIT]
    return [line for line, _ in _lay_out(rows, width=width)]


def test_every_recipe_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert set(RECIPES) <= {line.split()[0] for line in out.splitlines() if line}
    assert "\x1b" not in out


def test_a_line_tells_model_epochs_resolution_and_published_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "deit3_base_192_*"]) == 0
    lines = [line.split()[:5] for line in capsys.readouterr().out.splitlines() if line.startswith("deit3")]
    assert lines == [
        ["deit3_base_192_400", "deit3_base", "400,20", "192,224", "83.5"],
        ["deit3_base_192_800", "deit3_base", "800,20", "192,224", "83.8"],
    ]


@pytest.mark.parametrize(
    ("name", "epochs", "published"),
    [
        ("upernet_deit3_base", "160k steps", "mIoU"),
        ("mask_rcnn_patchconvnet_s60", "36", "box AP"),
        ("resmlp_wmt14_en_de", "100k steps", "BLEU"),
        ("transformer_wmt14_en_fr", "100k steps", "BLEU"),
    ],
)
def test_other_measures_than_top1_are_named_and_steps_stand_for_epochs(name: str, epochs: str, published: str) -> None:
    row = _row(get_recipe(name), RECIPES[name])
    number, _, measure = row["published"].partition(" ")
    assert (row["epochs"], measure) == (epochs, published)
    assert number in RECIPES[name].about


@pytest.mark.parametrize(
    ("width", "heading"), [(80, "recipe model epochs image published"), (60, "recipe epochs image published")]
)
def test_a_narrow_terminal_loses_columns_but_no_name(width: int, heading: str) -> None:
    lines = lines_of(width)
    assert lines[0].split() == heading.split()
    assert max(map(len, lines)) <= width
    assert set(DEIT) <= {line.split()[0] for line in lines if line}


def test_a_file_gets_every_column() -> None:
    assert lines_of(None)[0].split() == ["recipe", "model", "epochs", "image", "published", "about"]


def test_show_prints_what_is_known_and_yaml_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", "show", "deit_small"]) == 0
    out = capsys.readouterr().out
    assert "# Command: vitrail train deit_small data=imagenet:ROOT out=runs/deit_small\n" in out
    assert "epochs: 300.0                       # passes over the training samples\n" in out
    (tmp_path / "shown.yaml").write_text(out, encoding="utf-8")
    assert read_recipe(tmp_path / "shown.yaml") == get_recipe("deit_small")


def test_show_takes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("epochs: 7\n", encoding="utf-8")
    assert main(["recipes", "show", str(path)]) == 0
    assert "epochs: 7.0  " in capsys.readouterr().out


def test_show_and_cp_put_settings_in_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=deit_base", "init=runs/mine", "epochs=7"]
    assert main(["recipes", "show", "transfer_cars", *words, "out=runs/x"]) == 0
    out = capsys.readouterr().out
    assert "name: deit_base " in out
    assert "settings: {} " in out
    assert main(["recipes", "cp", "transfer_cars", str(tmp_path / "my.yaml"), *words]) == 0
    assert read_recipe(tmp_path / "my.yaml").epochs == 7


def test_optimizers_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "optimizers", "*muon"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"muon", "torch_muon"} <= {line.split()[0] for line in lines}
    assert all(len(line.split()) > 3 for line in lines)


def test_cp_copies_and_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    assert main(["recipes", "cp", "a2", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{path} is a copy of a2. Change it, then: vitrail train {path} data=FOLDER out=runs/my\n"
    )
    assert read_recipe(path) == get_recipe("a2")


def test_cp_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("mine", encoding="utf-8")
    assert main(["recipes", "cp", "a2", str(path)]) == 2
    assert "exists already: choose another name, or remove it first" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["deit"], "no recipe is named 'deit'; did you mean 'deit*'?"),
        (["deti_small*"], "unknown recipe 'deti_small': did you mean deit_small"),
        (["show", "deit_smal"], "unknown recipe 'deit_smal': did you mean deit_small"),
        (["show"], "write vitrail recipes [PATTERN] | show NAME|FILE [key=value ...] | cp NAME|FILE NEW.yaml"),
        (["cp", "a2"], "write vitrail recipes [PATTERN] | show NAME|FILE [key=value ...] | cp NAME|FILE NEW.yaml"),
        (["cp", "a2", "lr=1"], "write vitrail recipes [PATTERN] | show NAME|FILE"),
        (["show", "a2", "epoch=1"], "unknown key 'epoch', did you mean 'epochs'?"),
        (["optimizers", "quux*"], "no optimizer is named 'quux*'"),
        (["cp", "a2", "mine"], "the file of a recipe ends in .yaml: vitrail recipes cp a2 mine.yaml"),
        (["cp", "a2", "no/such/folder/my.yaml"], "cannot write no/such/folder/my.yaml: No such file or directory"),
        (["deit*", "cait*"], "one pattern at a time"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"classify", "distill", "embed", "clusterfit"} <= {line.split()[0] for line in lines}
    assert "distill     A recipe that trains a classifier on labels and on what a teacher answers" in lines


def test_show_leaves_out_what_a_recipe_cannot_use(capsys: pytest.CaptureFixture[str]) -> None:
    shown: dict[str, str] = {}
    for name in ("deit_small", "deit_tiny_distilled", "grafit", "grafit_clusterfit_plus", "small"):
        assert main(["recipes", "show", name]) == 0
        shown[name] = capsys.readouterr().out
    groups = {
        name: {line.partition(":")[0] for line in text.splitlines() if ":  #" in line} for name, text in shown.items()
    }
    assert not groups["deit_small"] & {"teacher", "embedding", "clusters"}
    assert "teacher" in groups["deit_tiny_distilled"]
    assert not groups["grafit"] & {"teacher", "blend", "objective", "clusters"}
    assert "clusters" in groups["grafit_clusterfit_plus"]
    assert "magnitude" not in shown["small"]
    assert "magnitude" in shown["deit_small"]
    assert main(["recipes", "show", "small", "--all"]) == 0
    assert "magnitude" in capsys.readouterr().out
