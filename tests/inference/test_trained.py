"""Finding and loading a trained model: of a run, finished or not, and of a saved folder."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import run_in

import vitrail
from vitrail.data.augment import EvaluationView
from vitrail.inference.class_names import map_targets, match_classes
from vitrail.inference.trained import Trained, load_trained
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "first", "evaluation.crop_ratio=0.9")


@pytest.fixture(scope="module")
def trained(run: RunFolder) -> Trained:
    return load_trained(run.path)


def assert_same_weights(first: Trained, second: Trained) -> None:
    one, other = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_says_its_classes_and_how_images_are_prepared(run: RunFolder, trained: Trained) -> None:
    assert trained.classes is not None
    assert len(trained.classes) == trained.num_classes == 24
    assert trained.coarse is not None
    assert trained.coarse.classes[trained.coarse.of[0]] in trained.classes[0]
    assert trained.view == EvaluationView(image_size=16, crop_ratio=0.9)
    assert trained.level == json.loads(run.task_file.read_text())["level"]
    assert not trained.model.training


def test_the_folder_of_the_model_is_enough(run: RunFolder, trained: Trained) -> None:
    alone = load_trained(run.model)
    assert alone.classes == trained.classes
    assert alone.view == trained.view
    assert_same_weights(alone, trained)


def test_a_run_that_has_not_ended_gives_the_average_of_its_newest_checkpoint(run: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "unfinished")
    shutil.copytree(run.path, folder.path)
    shutil.rmtree(folder.model)
    newest = Checkpoints(folder.checkpoints).newest()
    assert newest is not None
    average = load_checkpoint(newest)["average"]["weights"]
    state = load_trained(folder.path).model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in average.items())


def test_a_run_without_checkpoints_is_an_error(run: RunFolder, tmp_path: Path) -> None:
    shutil.copy(run.recipe_file, tmp_path)
    with pytest.raises(ValueError, match="neither a model nor a checkpoint yet"):
        load_trained(tmp_path)


def test_pictures_of_another_size_resize_the_positions(trained: Trained) -> None:
    larger = trained.seeing(image_size=(24, 16), crop_ratio=1.0)
    assert larger.view == EvaluationView(image_size=(24, 16), crop_ratio=1.0)
    assert larger.model.grid == (6, 4)
    assert trained.model.grid == (4, 4)
    images = torch.rand(2, 3, 24, 16)
    with torch.inference_mode():  # the model does it on the fly as well
        torch.testing.assert_close(larger.model(images), trained.model(images))


def test_another_crop_ratio_keeps_the_model(trained: Trained) -> None:
    assert trained.seeing(crop_ratio=0.5).model is trained.model


def test_a_layer_across_patches_is_resized_too(tmp_path: Path) -> None:
    model = vitrail.create_model("resmlp_s12", image_size=32, dim=16, depth=1, num_classes=3, patch_size=8)
    vitrail.save_model(model, tmp_path)
    larger = load_trained(tmp_path).seeing(image_size=48)
    assert larger.model(torch.rand(1, 3, 48, 48)).shape == (1, 3)


def test_a_model_without_names_numbers_its_classes(tmp_path: Path) -> None:
    vitrail.save_model(vitrail.create_model("deit_tiny", image_size=32, depth=1, num_classes=3), tmp_path)
    found = load_trained(tmp_path)
    assert found.classes is None
    assert found.class_names == ("0", "1", "2")
    assert match_classes(found, ("a", "b", "c"), name="letters") is None
    with pytest.raises(ValueError, match="letters has 2 classes and the model 3"):
        match_classes(found, ("a", "b"), name="letters")


def test_classes_that_do_not_fit_the_model_are_an_error(tmp_path: Path) -> None:
    vitrail.save_model(vitrail.create_model("deit_tiny", image_size=32, depth=1, num_classes=3), tmp_path)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": ["a", "b"]}))
    with pytest.raises(ValueError, match="names 2 classes and the model has 3"):
        load_trained(tmp_path)
    (tmp_path / "classes.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"task\.json holds wrong values \(it is incomplete, without classes\): restore"
    ):
        load_trained(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"classes": "abc"}, "classes is no list of names"),
        ({"classes": ["a", None, 1.5]}, "classes is no list of names"),
        ({"task": 3, "classes": ["a", "b", "c"]}, "there is no task '3'"),
        ({"task": "9" * 5000, "classes": ["a", "b", "c"]}, f"there is no task '{'9' * 80}'"),
        ({"classes": ["a", "b", "c"], "level": []}, r"level is no name: \[\]"),
        ({"classes": ["a", "b", "c"], "coarse": {"name": "x", "classes": ["y"], "of": [0, 0, 1]}}, "coarse gives"),
        ({"classes": ["a", "b", "c"], "coarse": 3}, "TypeError"),
    ],
)
def test_wrong_values_in_a_task_file_are_one_line(tmp_path: Path, content: object, reason: str) -> None:
    vitrail.save_model(vitrail.create_model("deit_tiny", image_size=32, depth=1, num_classes=3), tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}: task\.json holds wrong values \({reason}"):
        load_trained(tmp_path)


def test_what_is_no_run_is_an_error_that_says_what_is_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such run or model"):
        load_trained(tmp_path / "nothing")
    with pytest.raises(ValueError, match="neither a run"):
        load_trained(tmp_path)


def test_classes_are_matched_by_name(trained: Trained) -> None:
    assert trained.classes is not None
    assert match_classes(trained, trained.classes, name="same") is None
    some = (trained.classes[5], trained.classes[2])
    places = match_classes(trained, some, name="some")
    assert places is not None
    assert places.tolist() == [5, 2]
    with pytest.raises(ValueError, match=r"does not know 4 of the 5 classes of other: 'a', 'b', 'c', \.\.\."):
        match_classes(trained, (trained.classes[0], "a", "b", "c", "d"), name="other")


def test_targets_follow_their_classes() -> None:
    places = torch.tensor([5, 2])
    assert map_targets(torch.tensor([0, 1, -1]), places, num_classes=6).tolist() == [5, 2, -1]
    masks = map_targets(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), places, num_classes=6)
    assert masks.tolist() == [[0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 1]]
