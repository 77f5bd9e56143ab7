"""The folder of a run: what may change when it goes on, and side files that are damaged."""

from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from vitrail.training.runs.run_folder import RunFolder


def begun(path: Path) -> RunFolder:
    """A run that has a checkpoint."""
    folder = RunFolder(path / "run")
    folder.begin(tiny_recipe())
    folder.checkpoints.mkdir()
    (folder.checkpoints / "step_000000001.pt").write_bytes(b"")
    return folder


def test_what_decides_how_a_run_is_computed_may_change(tmp_path: Path) -> None:
    words = ("data.val=elsewhere", "workers=2", "run.keep=4", "devices=2", "data.max_broken=0.5")
    begun(tmp_path).begin(tiny_recipe(*words))


def test_the_share_of_val_may_not_change_though_val_may(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"another recipe \(data\.val_share was 0\.1, now 0\.3\)"):
        begun(tmp_path).begin(tiny_recipe("data.val_share=0.3"))


def test_what_a_killed_process_left_before_the_recipe_is_no_run_of_others(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (folder.path / ".recipe.yaml.123.partial").write_text("name: ti")
    folder.begin(tiny_recipe())
    assert folder.is_begun


@pytest.mark.parametrize("content", [b'{"micro_batch_0": 8', b"\xff\xfe", b"[1, 2]", b""])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.plan_file.write_bytes(content)
    with pytest.raises(ValueError, match=r"plan\.json (can't|must) .*: restore it, or delete it") as error:
        folder.read_json(folder.plan_file)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_json(folder.plan_file) == {}


def test_lines_of_metrics_that_are_none_are_passed_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    good = {"kind": "train", "stage": 0, "step": 1}
    folder.append_metrics(good)
    with folder.metrics_file.open("ab") as file:
        file.write(b'123\nnull\n{"kind": "train"}\n{"stage": "a", "step": 2}\n\xff\n{"stage": 0, "st')
    assert folder.read_metrics() == [good]
    folder.forget_metrics(stage=0, step=1)
    assert folder.metrics_file.read_text().splitlines() == ['{"kind": "train", "stage": 0, "step": 1}']
