"""Runs with a teacher: every kind and student, caches that are never stale, and a kill in the middle."""

import json
from pathlib import Path

import pytest
import torch
from tiny_runs import finish, run_in, run_two, start, wait_for_step

import vitrail
from vitrail.cli import main
from vitrail.layers.classifier import DistilledClassifier
from vitrail.tasks.distill.teachers import SingleTeacher
from vitrail.training.runs.run_folder import RunFolder

STUDENTS = {
    "cait": (),
    "vit": ("model=deit_tiny",),
    "patchconvnet": ("model=patchconvnet_s60", "model.settings={patch_size: 4, dim: 16, depth: 2}"),
    "resmlp": ("model=resmlp_s12", "model.settings={patch_size: 4, dim: 16, depth: 2}"),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt a little, at another image size than its students."""
    return run_in(tmp_path_factory.mktemp("runs") / "teacher", "epochs=2", "image_size=32").path


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the teacher is asked about each time."""
    asked: list[int] = []
    ask = SingleTeacher.__call__

    def noting(self: SingleTeacher, pixels: torch.Tensor) -> torch.Tensor:
        asked.append(len(pixels))
        return ask(self, pixels)

    monkeypatch.setattr(SingleTeacher, "__call__", noting)
    return asked


def weights_of(run: RunFolder) -> dict[str, torch.Tensor]:
    return vitrail.load_model(run.model).state_dict()


def are_same(first: RunFolder, second: RunFolder) -> bool:
    one, other = weights_of(first), weights_of(second)
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("kind", ["soft", "hard", "token"])
def test_every_student_learns_by_every_kind(tmp_path: Path, teacher: Path, student: str, kind: str) -> None:
    run = run_in(tmp_path / "run", "epochs=1", *STUDENTS[student], f"teacher={teacher}", f"teacher.kind={kind}")
    model = vitrail.load_model(run.model)
    assert isinstance(model.head, DistilledClassifier) == (kind == "token")
    [step] = [record for record in run.read_metrics() if record["kind"] == "train"][-1:]
    share = 0.1 if kind == "soft" else 0.5
    assert step["loss"] == pytest.approx((1 - share) * step["loss_labels"] + share * step["loss_teacher"], rel=1e-5)


def test_the_teacher_makes_a_difference_also_with_binary_cross_entropy(tmp_path: Path, teacher: Path) -> None:
    words = ("epochs=1", "objective.loss=bce")
    plain, taught = run_in(tmp_path / "plain", *words), run_in(tmp_path / "taught", *words, f"teacher={teacher}")
    assert not are_same(plain, taught)


def test_parts_of_a_batch_learn_what_the_whole_does(tmp_path: Path, teacher: Path) -> None:
    words = ("epochs=1", f"teacher={teacher}", "teacher.kind=token", "regularisation.drop_path=0")
    whole = weights_of(run_in(tmp_path / "whole", *words, "run.micro_batch=16"))
    parts = weights_of(run_in(tmp_path / "parts", *words, "run.micro_batch=4"))
    assert all(torch.allclose(whole[name], parts[name], atol=1e-5) for name in whole)


def test_a_warm_cache_asks_nobody_and_gives_the_same_student(
    tmp_path: Path, teacher: Path, questions: list[int]
) -> None:
    words = (f"teacher={teacher}", "teacher.cache=views:2", f"teacher.cache_folder={tmp_path / 'cache'}", "epochs=5")
    first = run_in(tmp_path / "first", *words)
    assert 0 < sum(questions) <= 2 * 48  # two views of each image, however many epochs
    questions.clear()
    second = run_in(tmp_path / "second", *words)
    assert not questions
    assert are_same(first, second)
    run_in(tmp_path / "other", *words, "seed=5", "model.settings={patch_size: 4, dim: 32, depth: 1, num_heads: 2}")
    assert sum(questions) < 48  # another student finds the answers, but for images that the first never met


@pytest.mark.parametrize(
    "words", ["augmentation.colour_jitter=0.2", "data=shapes:size=16,count=49,val=24", "image_size=24", "teacher"]
)
def test_another_augmentation_data_or_teacher_finds_no_answer(
    tmp_path: Path, teacher: Path, questions: list[int], words: str
) -> None:
    common = (f"teacher={teacher}", "teacher.cache=views:2", f"teacher.cache_folder={tmp_path / 'cache'}", "epochs=1")
    run_in(tmp_path / "first", *common)
    num_first = sum(questions)
    if words == "teacher":
        words = f"teacher={run_in(tmp_path / 'changed', 'epochs=1', 'image_size=32').path}"
    run_in(tmp_path / "second", *common, words)
    assert sum(questions) == 2 * num_first
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_student_that_was_killed_ends_with_the_same_bits(tmp_path: Path, teacher: Path) -> None:
    words = ["epochs=5", f"teacher={teacher}", "teacher.kind=token", "teacher.cache=views:3", "run.save_minutes=0.0001"]
    killed = tmp_path / "killed"
    process = start(killed, *words, f"teacher.cache_folder={tmp_path / 'one'}")
    wait_for_step(process, killed, 7)
    process.kill()
    process.communicate()
    finish(start(killed, *words, f"teacher.cache_folder={tmp_path / 'one'}"))
    whole = run_in(tmp_path / "whole", *words, f"teacher.cache_folder={tmp_path / 'two'}")
    assert are_same(RunFolder(killed), whole)


def test_two_processes_learn_what_one_does(tmp_path: Path, teacher: Path) -> None:
    words = ["epochs=2", f"teacher={teacher}", "teacher.kind=token", "regularisation.drop_path=0"]
    cached = [*words, "teacher.cache=views:2", f"teacher.cache_folder={tmp_path / 'cache'}"]
    for name, settings in (("asked", words), ("cached", cached)):
        run_two(tmp_path / f"{name}2", *settings)
        one, two = weights_of(run_in(tmp_path / f"{name}1", *settings)), weights_of(RunFolder(tmp_path / f"{name}2"))
        assert all(torch.allclose(one[key], two[key], atol=1e-4) for key in one)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["teacher=nowhere/run"], "nowhere/run: no such teacher; give a run's folder"),
        (["teacher={teacher}", "data=fashion"], "teacher.classes"),
        (["teacher={teacher}", "teacher.cache=8"], "teacher.cache"),
        (["teacher={teacher}", "teacher.kind=tokens"], "teacher.kind"),
        (
            [
                "teacher={teacher}",
                "teacher.kind=token",
                "model=cait_xxs24",
                "model.settings.class_depth=0",
                "image_size=32",
            ],
            "distilled=True needs",
        ),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    settings = [word.format(teacher=teacher) for word in words]
    code = main(["train", "small", "data=shapes:size=16,count=48,val=24", f"out={tmp_path / 'run'}", *settings])
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_classes_are_mapped_by_a_file(tmp_path: Path, teacher: Path) -> None:
    names = vitrail.open_dataset("shapes:size=16,count=48,val=24", "train").level().classes
    known = json.loads((teacher / "task.json").read_text())["classes"]
    coarse = vitrail.open_dataset("shapes:size=16,count=48,val=24", "train").level("coarse").classes
    file = tmp_path / "map.json"
    file.write_text(json.dumps({name: [known[0], known[place + 1]] for place, name in enumerate(coarse)}))
    run = run_in(tmp_path / "run", "epochs=1", "data.level=coarse", f"teacher={teacher}", f"teacher.classes={file}")
    assert vitrail.load_model(run.model).config.num_classes == len(coarse) < len(names)
