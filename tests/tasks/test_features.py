"""Features of a teacher: the loss by hand, every student, what is kept and saved, and runs that go on bit by bit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from shrunk import randomize, small_model
from tiny_runs import finish, run_in, run_two, start, task_of, tiny_recipe, wait_for_step
from torch import Tensor, nn

import vitrail
from vitrail.cli import main
from vitrail.data.contract import ImageBatch
from vitrail.heads.features import FeatureHeadSettings, FeatureModel, FeatureShape, ProjectedFeatures
from vitrail.tasks.features.objective import FeatureDistillation, compare, similarity, spread_of, whiten
from vitrail.tasks.features.settings import FeatureSettings
from vitrail.tasks.features.task import make_signs
from vitrail.tasks.teaching.feature_teacher import FeatureTeacher
from vitrail.tasks.unlabelled.collapse import CollapseError, CollapseWatch
from vitrail.training.runs.report import write_report
from vitrail.training.runs.run_folder import RunFolder

FEATURES = ("task=features", "augmentation.repeats=1", "features.hidden_dim=16", "epochs=2", "evaluation.every=100")
STUDENTS: dict[str, tuple[str, ...]] = {
    "cait": (),
    "vit": ("model=deit_tiny",),
    "patchconvnet": ("model=patchconvnet_s60", "model.settings={patch_size: 4, dim: 16, depth: 2}"),
    "resmlp": ("model=resmlp_s12", "model.settings={patch_size: 4, dim: 16, depth: 2}"),
    "timm": ("model=timm/resnet10t", "model.settings={small_images: false}", "image_size=32"),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of another width, grid and image size than its students."""
    place = tmp_path_factory.mktemp("models") / "teacher"
    vitrail.save_model(randomize(small_model("deit_tiny", patch_size=8, image_size=24, dim=24)), place)
    return place


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the teacher is asked about each time, but for the one that tells its sizes."""
    asked: list[int] = []
    ask = FeatureTeacher.__call__

    def noting(self: FeatureTeacher, pixels: Tensor) -> Tensor:
        asked.append(len(pixels))
        return ask(self, pixels)

    monkeypatch.setattr(FeatureTeacher, "__call__", noting)
    return asked


def weights_of(run: RunFolder) -> dict[str, Tensor]:
    return vitrail.load_model(run.model).state_dict()


def are_same(first: RunFolder, second: RunFolder) -> bool:
    one, other = weights_of(first), weights_of(second)
    return all(torch.equal(one[name], other[name]) for name in one)


def are_close(first: RunFolder, second: RunFolder, tolerance: float = 1e-5) -> bool:
    one, other = weights_of(first), weights_of(second)
    return all(torch.allclose(one[name], other[name], atol=tolerance) for name in one)


def last(run: RunFolder, kind: str) -> dict[str, Any]:
    return [record for record in run.read_metrics() if record["kind"] == kind][-1]


class Says(nn.Module):
    """A student that says the same whatever it sees."""

    def __init__(self, features: ProjectedFeatures) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: Tensor) -> ProjectedFeatures:
        return self.features


def test_the_loss_is_cosine_and_smooth_l1_of_each_level() -> None:
    summary = torch.tensor([[3.0, 4.0]])
    patches = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])  # two patches, (1, 0) and (0, 1)
    shape = FeatureShape(summary=2, patches=2, grid=(1, 2))
    settings = FeatureSettings(summary=2.0, patches=0.5, cosine=0.75)
    teacher = ProjectedFeatures(torch.tensor([[3.0, 0.0]]), torch.tensor([[[[1.0, 1.0]], [[0.0, 1.0]]]]))
    batch = ImageBatch(torch.zeros(1, 3, 2, 2), torch.tensor([-1]), torch.arange(1), answers=shape.join(teacher))
    losses = FeatureDistillation(settings, shape=shape)(Says(ProjectedFeatures(summary, patches)), batch)
    of_summary = 0.75 * (1 - 0.6) + 0.25 * (0.0 + 3.5) / 2
    of_patches = 0.75 * (1 - (1 + math.sqrt(0.5)) / 2) + 0.25 * 0.5 / 4
    assert losses.parts["summary"].item() == pytest.approx(of_summary)
    assert losses.parts["patches"].item() == pytest.approx(of_patches)
    assert losses.total.item() == pytest.approx(2.0 * of_summary + 0.5 * of_patches)
    expected = (2.0 * 0.6 + 0.5 * (1 + math.sqrt(0.5)) / 2) / 2.5
    assert losses.parts["similarity"].item() == pytest.approx(expected)
    found = similarity(ProjectedFeatures(summary, patches), teacher, settings=settings)
    assert found.tolist() == pytest.approx([expected])


def test_standardised_features_leave_nothing_to_a_student_that_says_one_thing() -> None:
    model = FeatureModel(small_model("deit_tiny", num_classes=0), FeatureHeadSettings(summary=16, hidden_dim=8))
    draws = torch.Generator().manual_seed(0)
    scales = torch.tensor([100.0] + [1.0] * 14 + [0.0])  # one number far larger than all others, one that never moves
    rows = torch.randn(400, 16, generator=draws) * scales + 50.0 * scales
    constant = rows.mean(dim=0).expand_as(rows)
    assert nn.functional.cosine_similarity(constant, rows, dim=1).mean() > 0.99
    model.set_statistics("summary", mean=rows.mean(dim=0), deviation=rows.std(dim=0, correction=0))
    standard = model.standardize(ProjectedFeatures(rows, None)).summary
    assert standard is not None
    torch.testing.assert_close(standard[:, :15].std(dim=0, correction=0), torch.ones(15))
    assert standard[:, 15].abs().max() < 1e-3
    assert compare(standard, standard, cosine=0.9).item() == pytest.approx(0.0, abs=1e-6)
    direction = torch.randn(1, 16, generator=draws).expand_as(rows)
    assert abs(nn.functional.cosine_similarity(direction, standard, dim=1).mean()) < 0.05


def test_each_image_may_be_standardised_by_itself() -> None:
    maps = torch.randn(2, 6, 3, 3) * 4 + 1
    found = whiten(ProjectedFeatures(None, maps), "image").patches
    assert found is not None
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(2, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(dim=1, correction=0), torch.ones(2, 3, 3), atol=1e-4, rtol=0)
    assert whiten(ProjectedFeatures(None, maps), "none").patches is maps


@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24", "patchconvnet_s60", "resmlp_s12"])
@pytest.mark.parametrize("projector", ["linear", "mlp"])
def test_every_part_of_every_student_learns(name: str, projector: str) -> None:
    trunk = randomize(small_model(name, num_classes=0))
    settings = FeatureHeadSettings(summary=5, patches=6, grid=(3, 2), projector=projector, hidden_dim=8)
    model = FeatureModel(trunk, settings).train()
    shape = model.shape
    images = torch.randn(4, 3, *trunk.config.size)
    batch = ImageBatch(images, torch.full((4,), -1), torch.arange(4), answers=torch.randn(4, shape.size))
    losses = FeatureDistillation(FeatureSettings(), shape=shape)(model, batch)
    losses.total.backward()
    assert model(images).patches.shape == (4, 6, 3, 2)
    assert all(value.grad is not None for value in model.parameters())
    assert model.parts()["head"] == {name for name, _ in model.named_parameters() if "projector" in name}


def test_a_summary_that_is_not_learnt_leaves_no_parameter_without_a_gradient() -> None:
    model = FeatureModel(small_model("cait_xxs24", num_classes=0), FeatureHeadSettings(patches=6, hidden_dim=8)).train()
    batch = ImageBatch(
        torch.randn(2, 3, *model.config.size),
        torch.full((2,), -1),
        torch.arange(2),
        None,
        torch.randn(2, model.shape.size),
    )
    losses = FeatureDistillation(FeatureSettings(summary=0.0), shape=model.shape)(model, batch)
    losses.total.backward()
    assert losses.total.item() == pytest.approx(losses.parts["patches"].item())
    assert all(value.grad is not None for value in model.parameters())  # processes would wait for one for ever


@pytest.mark.parametrize("student", STUDENTS)
def test_every_family_learns_and_leaves_a_bare_trunk(tmp_path: Path, teacher: Path, student: str) -> None:
    grid = "teacher" if student == "vit" else "student"
    words = (*FEATURES, *STUDENTS[student], f"teacher={teacher}", f"features.grid={grid}", "epochs=1")
    run = run_in(tmp_path / "run", *words)
    step, measured = last(run, "train"), last(run, "eval")
    assert step["loss"] == pytest.approx(step["loss_summary"] + step["loss_patches"], rel=1e-5)
    assert {"similarity", "knn_top1", "effective_rank", "feature_deviation"} <= measured.keys()
    model = vitrail.load_model(run.model)
    assert model.trunk is model
    assert model.config.num_classes == 0


def test_the_similarity_grows_and_the_run_fine_tunes(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*FEATURES, f"teacher={teacher}", "epochs=12", "lr=3e-3", "evaluation.every=6", "regularisation.ema=null")
    run = run_in(tmp_path / "run", *words, "regularisation.drop_path=0")
    first, second = (record["similarity"] for record in run.read_metrics() if record["kind"] == "eval")
    assert second > first + 0.02
    page = write_report(run.path).read_text(encoding="utf-8")
    assert f"{second:.3f}</" in page  # a cosine is no percentage, of which a tenth would do
    for title in ("Similarity to the teacher", "Training loss of each level", "Effective rank in a batch"):
        assert title in page
    assert vitrail.evaluate(run.path).figures["similarity"] == pytest.approx(second, abs=1e-4)

    def gone(*words: object, **settings: object) -> None:
        raise ValueError("the teacher is gone")

    monkeypatch.setattr("vitrail.tasks.features.task.load_feature_teacher", gone)  # what is trained does without it
    found = vitrail.evaluate(run.path)
    assert found.figures.keys() >= {"knn_top1", "effective_rank"}
    assert found.text.endswith("the similarity to the teacher is left out: the teacher is gone")
    tuned = task_of(tiny_recipe(f"init={run.path}"))
    model = tuned.make_model({"classes": list("abc")})
    tuned.load_initial(model, str(run.path), description={"classes": list("abc")})
    trunk = weights_of(run)
    state = model.state_dict()
    assert all(torch.equal(state[name], trunk[name]) for name in trunk)
    assert last(run_in(tmp_path / "tuned", f"init={run.path}", "epochs=1"), "eval")["top1"] >= 0.0


def test_one_level_alone_and_photos_without_labels(tmp_path: Path, teacher: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    common = (*FEATURES, f"teacher={teacher}", f"data={photos}", "batch_size=8", "epochs=1")
    for level, other in (("summary", "patches"), ("patches", "summary")):
        run = run_in(tmp_path / level, *common, f"features.{other}=0")
        step = last(run, "train")
        assert step["loss"] == pytest.approx(step[f"loss_{level}"], rel=1e-5)
        assert f"loss_{other}" not in step
        assert "knn_top1" not in last(run, "eval")
        description = json.loads((run.path / "task.json").read_text())
        assert description.get("reads_patches", False) is (level == "patches")


def test_a_warm_cache_asks_nobody_and_gives_the_same_student(
    tmp_path: Path, teacher: Path, questions: list[int]
) -> None:
    common = (*FEATURES, f"teacher={teacher}", "epochs=5", "features.standardize=image")
    words = (*common, "teacher.cache=views:2", f"teacher.cache_folder={tmp_path / 'cache'}")
    first = run_in(tmp_path / "first", *words)
    assert 0 < sum(questions) <= 2 * 48 + 24  # two views of each image and val, however many epochs
    questions.clear()
    second = run_in(tmp_path / "second", *words)
    assert not questions
    assert are_same(first, second)
    run_in(tmp_path / "other", *words, "augmentation.colour_jitter=0.1", "epochs=1")
    assert sum(questions) == 48  # of val the answers are the same


def test_parts_of_a_batch_and_lanes_learn_what_the_whole_does(tmp_path: Path, teacher: Path) -> None:
    words = (*FEATURES, f"teacher={teacher}", "regularisation.drop_path=0", "epochs=1")
    whole = run_in(tmp_path / "whole", *words, "run.micro_batch=16")
    parts = run_in(tmp_path / "parts", *words, "run.micro_batch=4", "run.threads=1")
    assert are_close(whole, parts)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        lanes = run_in(tmp_path / "lanes", *words, "run.micro_batch=4")
    finally:
        torch.set_num_threads(before)
    assert are_same(parts, lanes)


def test_two_processes_learn_what_one_does(tmp_path: Path, teacher: Path) -> None:
    words = [*FEATURES, f"teacher={teacher}", "regularisation.drop_path=0", "data=shapes:size=16,count=48,val=17"]
    words += ["teacher.cache=views:2", f"teacher.cache_folder={tmp_path / 'cache'}"]
    run_two(tmp_path / "two", *words)
    one, two = run_in(tmp_path / "one", *words), RunFolder(tmp_path / "two")
    assert are_close(one, two)
    for key in ("similarity", "knn_top1", "effective_rank"):
        assert last(one, "eval")[key] == pytest.approx(last(two, "eval")[key], rel=1e-4, abs=1e-5)


def test_a_student_that_was_killed_ends_with_the_same_bits(tmp_path: Path, teacher: Path) -> None:
    words = [*FEATURES, f"teacher={teacher}", "epochs=5", "teacher.cache=views:3", "run.save_minutes=0.0001"]
    killed = tmp_path / "killed"
    process = start(killed, *words, f"teacher.cache_folder={tmp_path / 'one'}")
    wait_for_step(process, killed, 7)
    process.kill()
    process.communicate()
    finish(start(killed, *words, f"teacher.cache_folder={tmp_path / 'one'}"))
    whole = run_in(tmp_path / "whole", *words, f"teacher.cache_folder={tmp_path / 'two'}")
    assert are_same(RunFolder(killed), whole)


def test_a_student_that_says_one_thing_of_all_images_is_stopped() -> None:
    model = FeatureModel(small_model("deit_tiny", num_classes=0), FeatureHeadSettings(summary=16, hidden_dim=8))
    draws = torch.Generator().manual_seed(0)
    varied, line = torch.randn(16, 16, generator=draws), torch.randn(16, 1, generator=draws)

    def train(vectors: Tensor) -> None:
        watch = CollapseWatch(make_signs(model), patience=20, grace=0)
        objective = FeatureDistillation(FeatureSettings(), shape=model.shape, watch=watch)
        for _ in range(40):
            for part in vectors.split(8):
                objective.note(part)
            objective.after_step(model)

    train(varied)
    with pytest.raises(CollapseError, match=r"\(constant\).* since step 1 .*; lower lr, or set optimizer\.clip=1"):
        train(varied[:1].expand(16, -1))
    with pytest.raises(CollapseError, match=r"\(one line\): what the student says of images differs along one"):
        train(nn.functional.normalize(varied[:1], dim=1) + 0.05 * line * nn.functional.normalize(varied[1:2], dim=1))


def test_a_learning_rate_that_breaks_the_student_is_named_and_a_sound_one_is_not(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = ("model=deit_tiny", "model.settings={patch_size: 8, dim: 16, depth: 1, num_heads: 2}", "features.patches=0")
    cached = (f"teacher={teacher}", "teacher.cache=views:1", f"teacher.cache_folder={tmp_path / 'cache'}")
    data = ("data=shapes:size=16,count=8,val=4", "batch_size=8", "run.micro_batch=8")  # a step an epoch
    common = (*FEATURES, *fast, *cached, *data, "epochs=210", "watch.pictures=null")
    run = run_in(tmp_path / "sound", *common)
    assert last(run, "train")["step"] == 210
    monkeypatch.setattr("vitrail.tasks.unlabelled.task._LEAST_GRACE", 0)  # what is broken at once is told sooner
    with pytest.raises(CollapseError, match=r"collapsed \(.* since step \d+ \(.*; lower lr, or set optimizer\.clip=1"):
        run_in(tmp_path / "broken", *common, "lr=30", "schedule.warmup_epochs=0")


def test_signals_of_spread_are_those_of_known_cases() -> None:
    even = torch.cat([torch.eye(4), -torch.eye(4)])
    found = spread_of(even)
    assert found["effective_rank"].item() == pytest.approx(4.0)
    assert found["feature_deviation"].item() == pytest.approx(0.5)
    assert spread_of(torch.ones(5, 4))["feature_deviation"].item() == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no teacher given: add teacher=NAME"),
        (["teacher=nowhere/run"], "nowhere/run: no such teacher; give a run's folder"),
        (["teacher={teacher}", "features.summary=0", "features.patches=0"], "there is nothing to learn"),
        (["teacher={teacher}", "teacher.cache=8"], "teacher.cache"),
        (["teacher={teacher}", "teacher.cache=views:2", "teacher.cache_limit=1e-6"], "would take 0.0 GB"),
        (["teacher={teacher}", "teacher.image_size=20"], "teacher.image_size=20 is no size for the teacher"),
        (["teacher={teacher}", "model=timm/pit_ti_224", "image_size=32"], "features.patches=0"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    settings = [word.format(teacher=teacher) for word in words]
    common = ["small", "task=features", "data=shapes:size=16,count=48,val=24", "image_size=16"]
    code = main(["train", *common, f"out={tmp_path / 'run'}", *settings])
    error = capsys.readouterr().err
    assert code == 2
    assert message in error.splitlines()[-1]  # after what is said of the data
    assert error.splitlines()[-1].startswith("vitrail: error: ")
    assert "Traceback" not in error
