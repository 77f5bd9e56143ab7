"""A task in one folder and one row: trained, resumed, measured, planned and reported, with no other line."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import finish, wait_for_step
from warm import WarmProcess

import vitrail
from vitrail.cli import main
from vitrail.recipes import find_recipe
from vitrail.settings.text import change, read_recipe, write_yaml
from vitrail.tasks import TASKS, Row
from vitrail.training.runs.run_folder import RunFolder

WORDS = (
    "model=cait_xxs24",
    "model.settings={patch_size: 4, dim: 16, depth: 2, num_heads: 2}",
    "image_size=16",
    "batch_size=16",
    "epochs=4",
    "run.micro_batch=8",
    "run.threads=1",
    "run.device=cpu",
)
OWN = "toy_rotation.task:Rotation"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flat folder of images that nobody has labelled: light comes from above."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(80):
        shade = np.linspace(255, 0, 20)[:, None, None] * generator.uniform(0.6, 1.0, (1, 1, 3))
        Image.fromarray(np.broadcast_to(shade, (20, 20, 3)).astype(np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def _in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "rotation", Row(OWN, "toy_rotation.settings:RotationRecipe"))


def start(folder: Path, photos: Path, *words: str) -> WarmProcess:
    """`vitrail train` of a task by module:Class, which the user types."""
    return WarmProcess(["train", "small", f"task={OWN}", f"data={photos}", f"out={folder}", *WORDS, *words])


@pytest.mark.usefixtures("_in_the_table", "_short_plans")
def test_a_row_of_the_table_is_enough(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert (
        main(
            [
                "train",
                "small",
                "task=rotation",
                f"data={photos}",
                f"out={run}",
                *WORDS,
                "epochs=20",
                "evaluation.every=5",
            ]
        )
        == 0
    )
    assert "error of turns" in capsys.readouterr().out
    errors = [record["turn_error"] for record in RunFolder(Path(run)).read_metrics() if record["kind"] == "eval"]
    assert errors[-1] < 50.0  # of four turns three in four are wrong by chance
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Turns</h2><p>seen</p>" in page.replace("\n", "")
    assert "Errors on val, %" in page
    task = json.loads((tmp_path / "run" / "model" / "task.json").read_text())
    assert (task["task"], task["turns"]) == ("rotation", 4)
    assert main(["evaluate", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["turn_error"] == pytest.approx(errors[-1])
    assert repr(vitrail.evaluate(run)).startswith(f"{run} on 8 samples")
    assert vitrail.load_trained(run).task == "rotation"
    assert vitrail.plan("small", data=str(photos), task="rotation", epochs=1, image_size=16).stages[0].speed > 0
    assert main(["predict", run, str(photos)]) == 2
    assert "does not answer about single images" in capsys.readouterr().err


@pytest.mark.usefixtures("_in_the_table")
def test_its_recipe_shows_its_own_settings_and_none_of_others(tmp_path: Path) -> None:
    recipe = change(find_recipe("small"), {"task": "rotation", "turns.number": 2})
    text = write_yaml(recipe)
    assert "turns:" in text
    assert not any(word in text for word in ("teacher:", "embedding:", "blend:", "objective:"))
    (tmp_path / "mine.yaml").write_text(text)
    assert read_recipe(tmp_path / "mine.yaml") == recipe


def test_killed_and_resumed_it_ends_with_the_same_bits(photos: Path, tmp_path: Path) -> None:
    killed, words = tmp_path / "killed", ("epochs=6", "run.save_minutes=0.0001")
    process = start(killed, photos, *words)
    wait_for_step(process, killed, 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "model").exists()
    finish(start(killed, photos, *words))
    finish(start(tmp_path / "whole", photos, *words))
    one, other = (vitrail.load_model(path / "model").state_dict() for path in (killed, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_may_not_bring_its_code(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text("format: 2\ntask: someone_else.task:Mine\n")
    assert main(["train", str(file), f"data={photos}", f"out={tmp_path / 'run'}"]) == 2
    assert "the task someone_else.task:Mine is code that a file names" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
