"""Teachers of every kind: what they see, which classes they answer for, and what changes their fingerprint."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from tiny_runs import run_in
from torch import Tensor
from torch.nn import functional

import vitrail
from vitrail.evaluation.predict import autocast, choose_precision
from vitrail.inference.trained import load_trained
from vitrail.settings.own import allow_own
from vitrail.tasks.distill.teachers import Teacher, load_teacher
from vitrail.training.runs.run_folder import RunFolder

CPU = torch.device("cpu")
# A module whose teacher says how bright each colour is, and notes what it was shown.
BRIGHTNESS = """
shown = []

def make():
    def ask(pixels):
        shown.append(pixels)
        return 10 * pixels.mean(dim=(2, 3))
    {more}
    return ask

def nothing():
    return 3

def wrong():
    return lambda pixels: pixels

number = 3
"""


def load(spec: str, classes: str | list[str] = "abc", **settings: Any) -> Teacher:
    allow_own(spec)
    return load_teacher(spec, classes=list(classes), device=CPU, **settings)


@torch.inference_mode()
def ask(model: Any, pixels: Tensor, mean: Any = (0.485, 0.456, 0.406), std: Any = (0.229, 0.224, 0.225)) -> Tensor:
    """What a model says about pixels, in the precision that teachers have here."""
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (mean, std))
    with autocast(CPU, choose_precision("auto", CPU)):
        return model((pixels - mean) / std).float()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_module(folder: Path, name: str, more: str = "") -> str:
    (folder / f"{name}.py").write_text(BRIGHTNESS.replace("{more}", more))
    return f"{name}:make"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "teacher", "epochs=1")


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(4, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def test_a_run_answers_as_its_model_does_for_images_resized_and_normalised(run: RunFolder, pixels: Tensor) -> None:
    trained = load_trained(run.path)
    teacher = load(str(run.path), list(trained.class_names))
    resized = functional.interpolate(pixels, size=16, mode="bicubic", antialias=True).clamp(0, 1)
    expected = ask(trained.model, resized, trained.normalize.mean, trained.normalize.std)
    torch.testing.assert_close(teacher(pixels), expected)


def test_answers_may_be_saved_for_a_backward_pass(run: RunFolder, pixels: Tensor) -> None:
    teacher = load(str(run.path), list(load_trained(run.path).class_names))
    student = torch.zeros(4, 24, requires_grad=True)
    answers = teacher(pixels)
    (student * answers).sum().backward()
    assert not answers.is_inference()
    assert student.grad is not None
    assert torch.equal(student.grad, answers)


def test_a_teacher_keeps_its_own_precision_inside_that_of_the_student(here: Path, pixels: Tensor) -> None:
    vitrail.save_model(vitrail.create_model("timm/resnet18", num_classes=3, image_size=32), here / "model")
    teacher = load(str(here / "model"))
    alone = teacher(pixels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = teacher(pixels)
    assert torch.equal(alone, inside)
    assert inside.dtype == torch.float32


def test_classes_are_matched_by_name_and_further_ones_dropped(run: RunFolder, pixels: Tensor) -> None:
    names = list(load_trained(run.path).class_names)
    everything, few = load(str(run.path), names), load(str(run.path), [names[5], names[0]])
    assert torch.equal(few(pixels), everything(pixels)[:, [5, 0]])
    assert few.fingerprint != everything.fingerprint


def test_classes_that_a_named_teacher_does_not_know_are_an_error(run: RunFolder) -> None:
    with pytest.raises(
        ValueError, match=r"has 24 classes and does not know 2 of the student's 2 \('cat', 'dog'; its own"
    ):
        load(str(run.path), ["cat", "dog"])


def test_the_size_that_a_run_sees_can_be_changed(run: RunFolder, pixels: Tensor) -> None:
    names = list(load_trained(run.path).class_names)
    usual, larger = load(str(run.path), names), load(str(run.path), names, image_size=24)
    assert larger(pixels).shape == (4, 24)
    assert not torch.allclose(larger(pixels), usual(pixels))
    assert larger.fingerprint != usual.fingerprint


def test_a_fingerprint_follows_the_weights(run: RunFolder, here: Path) -> None:
    names = list(load_trained(run.path).class_names)
    model = load_trained(run.path).model
    first = load(str(run.path), names).fingerprint
    assert load(str(run.model), names).fingerprint == first
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    vitrail.save_model(model, here / "changed")
    assert load(str(here / "changed"), names).fingerprint != first


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_of_a_timm_model_from_a_file(here: Path, suffix: str) -> None:
    model = timm.create_model("resnet18", num_classes=3).eval()
    if suffix == "pth":
        torch.save({"model": model.state_dict()}, "weights.pth")
    else:
        save_file(model.state_dict(), "weights.safetensors")
    teacher = load(f"timm/resnet18@weights.{suffix}", image_size=64)
    grey = torch.full((1, 3, 64, 64), 0.5)
    torch.testing.assert_close(teacher(grey), ask(model, grey))


def test_a_timm_transformer_sees_another_size_with_resized_positions(here: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=2)
    full = timm.create_model("vit_tiny_patch16_224", num_classes=3)
    torch.save(full.state_dict(), "weights.pth")
    teacher = load("timm/vit_tiny_patch16_224@weights.pth", image_size=(32, 48))
    assert teacher(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    torch.save(model.state_dict(), "short.pth")
    with pytest.raises(ValueError, match="blocks"):
        load("timm/vit_tiny_patch16_224@short.pth")


def test_a_function_is_found_in_the_working_directory_and_sees_the_pixels(here: Path, pixels: Tensor) -> None:
    teacher = load(write_module(here, "bright_one"))
    torch.testing.assert_close(teacher(pixels), 10 * pixels.mean(dim=(2, 3)))
    assert load(write_module(here, "bright_one"), image_size=8).fingerprint != teacher.fingerprint


def test_a_function_sees_the_size_that_is_asked_for(here: Path, pixels: Tensor) -> None:
    load(write_module(here, "bright_two"), image_size=(8, 12))(pixels)
    import bright_two  # type: ignore[import-not-found]

    assert bright_two.shown[0].shape == (4, 3, 8, 12)
    assert 0 <= bright_two.shown[0].min() <= bright_two.shown[0].max() <= 1


def test_a_function_may_name_its_classes(here: Path, pixels: Tensor) -> None:
    spec = write_module(here, "bright_three", more="ask.classes = ['red', 'green', 'blue']")
    answers = load(spec, ["blue", "red"])(pixels)
    torch.testing.assert_close(answers, 10 * pixels.mean(dim=(2, 3))[:, [2, 0]])


def test_the_source_stands_for_a_function_without_a_fingerprint(here: Path) -> None:
    first = load(write_module(here, "bright_four")).fingerprint
    with (here / "bright_four.py").open("a") as file:
        file.write("# changed\n")
    assert load("bright_four:make").fingerprint != first


def test_a_function_may_have_its_own_fingerprint(here: Path) -> None:
    spec = write_module(here, "bright_five", more="ask.fingerprint = 'release 1'")
    first = load(spec).fingerprint
    with (here / "bright_five.py").open("a") as file:
        file.write("# changed\n")
    assert load(spec).fingerprint == first


def test_the_weights_of_a_module_that_a_function_returns_count(here: Path, pixels: Tensor) -> None:
    source = "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1728, 3))\n"
    (here / "linear.py").write_text(source)
    torch.manual_seed(0)
    first = load("linear:make")
    torch.manual_seed(1)
    assert load("linear:make").fingerprint != first.fingerprint
    torch.manual_seed(0)
    assert load("linear:make").fingerprint == first.fingerprint
    assert not first(pixels).requires_grad


def test_several_teachers_give_the_logarithm_of_their_mean_probability(here: Path) -> None:
    first = write_module(here, "bright_six")
    (here / "certain.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return lambda pixels: torch.tensor([0.6, 0.3, 0.1]).log().repeat(len(pixels), 1)\n"
    )
    answers = load(f"{first}, certain:make")(torch.zeros(2, 3, 4, 4))
    expected = [math.log((1 / 3 + share) / 2) for share in (0.6, 0.3, 0.1)]
    torch.testing.assert_close(answers, torch.tensor([expected, expected]))


def test_the_order_of_teachers_and_each_of_them_count(here: Path) -> None:
    first, second = write_module(here, "bright_seven"), write_module(here, "bright_eight")
    prints = {load(spec).fingerprint for spec in (first, second, f"{first},{second}", f"{second},{first}")}
    assert len(prints) == 4


def test_a_mapping_says_which_classes_are_which(here: Path, pixels: Tensor) -> None:
    spec = write_module(here, "bright_nine", more="ask.classes = ['red', 'green', 'blue']")
    (here / "classes.json").write_text(json.dumps({"cold": "blue", "warm": [0, "green"]}))
    bright = 10 * pixels.mean(dim=(2, 3))
    answers = load(spec, ["warm", "cold"], mapping="classes.json")(pixels)
    torch.testing.assert_close(answers[:, 1], bright[:, 2])
    torch.testing.assert_close(answers[:, 0], (bright[:, 0].exp() + bright[:, 1].exp()).log())


def test_each_of_several_teachers_may_have_its_mapping(here: Path, pixels: Tensor) -> None:
    named = write_module(here, "bright_ten", more="ask.classes = ['red', 'green', 'blue']")
    plain = write_module(here, "bright_eleven")
    (here / "classes.json").write_text(json.dumps({"blue": 2, "red": 0}))
    both = load(f"{named},{plain}", ["blue", "red"], mapping=",classes.json")(pixels)
    alone = load(named, ["blue", "red"])(pixels)
    torch.testing.assert_close(both, alone.log_softmax(dim=-1))
    with pytest.raises(ValueError, match=r"3 files in teacher\.classes for 2 teachers"):
        load(f"{named},{plain}", ["blue", "red"], mapping=",,classes.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 0}, r"does not say which class of the teacher stands for 'b'"),
        ({"a": 0, "b": 1, "c": 2}, r"names 'c', which the student does not have"),
        ({"a": 0, "b": 3}, r"has 3 classes, from 0 on; there is no 3"),
        ({"a": 0, "b": True}, r"True is neither a name nor an index"),
        ({"a": 0, "b": []}, r"the list of 'b' is empty"),
        ({"a": 0, "b": "red"}, r"have no names; give an index in place of 'red'"),
        ([0, 1], r"must hold an object"),
    ],
)
def test_a_wrong_mapping_is_one_line(here: Path, content: Any, message: str) -> None:
    (here / "classes.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load(write_module(here, "bright_twelve"), "ab", mapping="classes.json")(torch.rand(1, 3, 4, 4))


def test_a_mapping_that_is_not_there(here: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.json can't be read \(No such file"):
        load(write_module(here, "bright_thirteen"), "ab", mapping="nothing.json")


def test_another_number_of_classes_without_a_mapping_is_one_line(here: Path) -> None:
    vitrail.save_model(vitrail.create_model("timm/resnet18", num_classes=3, image_size=32), here / "model")
    with pytest.raises(
        ValueError, match=r"has 3 classes without names and the student 4: .*teacher\.classes=FILE\.json$"
    ):
        load(str(here / "model"), "abcd")
    teacher = load(write_module(here, "bright_fourteen"), "abcd")
    with pytest.raises(ValueError, match="has 3 classes without names and the student 4"):
        teacher(torch.rand(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere", r"^nowhere: no such teacher; give a run's folder, .* or module:function$"),
        ("no_such_module:make", r"there is no module no_such_module on the python path"),
        ("bright:missing", r"bright has no function missing"),
        ("bright:number", r"bright holds no callable function number"),
        ("bright:nothing", r"must return a callable from pixels to logits, not int"),
        ("needy:make", r"needy needs the module surely_not_installed, which is missing"),
        ("timm/resnet19", r"timm has no model 'resnet19': did you mean timm/resnet18"),
        ("timm/resnet18@missing.pth", r"missing\.pth: no such file"),
        ("timm/resnet18@", r"name the file of its weights, timm/resnet18 init=FILE"),
        ("missing.onnx", r"the teacher missing\.onnx: no such file"),
        ("bright:make,", r"a name is empty"),
        ("hf://nobody", r"is not of the form hf://owner/name"),
        (".", r"neither a run"),
    ],
)
def test_a_wrong_name_is_one_line(here: Path, spec: str, message: str) -> None:
    write_module(here, "bright")
    (here / "needy.py").write_text("import surely_not_installed\n")
    with pytest.raises(ValueError, match=message) as caught:
        load(spec)
    assert "\n" not in str(caught.value)


def test_answers_of_another_shape_are_an_error(here: Path) -> None:
    write_module(here, "bright_fifteen")
    with pytest.raises(ValueError, match=r"must answer with logits \[2, 'classes'\], not \[2, 3, 8, 8\]"):
        load("bright_fifteen:wrong")(torch.rand(2, 3, 8, 8))


def test_a_model_without_a_classifier_is_no_teacher(here: Path) -> None:
    vitrail.save_model(vitrail.create_model("timm/resnet18", num_classes=0, image_size=32), here / "model")
    with pytest.raises(ValueError, match="has no classifier"):
        load(str(here / "model"))
