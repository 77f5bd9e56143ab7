"""Runs of DINO: crops, teacher and centre in any number of parts and processes, going on, families, and collapse."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import finish, run_in, run_two, start, task_of, tiny_recipe, wait_for_step
from torch import Tensor, nn
from torch.nn import functional

import vitrail
from vitrail.data.contract import CropsBatch, Sample
from vitrail.heads.around_trunk import summary_width
from vitrail.heads.dino import DinoModel, ProjectionSettings
from vitrail.models.contract import Model
from vitrail.preview.preview_page import write_preview
from vitrail.tasks.contract import StepContext
from vitrail.tasks.dino.objective import Course, Dino
from vitrail.tasks.dino.settings import DinoRecipe, DinoSettings
from vitrail.tasks.dino.task import DinoTask
from vitrail.tasks.images.training_batch import training_views
from vitrail.tasks.site import Silence, Site
from vitrail.tasks.unlabelled.collapse import (
    CollapseError,
    CollapseWatch,
    constant_answers,
    constant_features,
    same_answers,
    uniform_answers,
)
from vitrail.training.loop.planning import make_plan
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.run_folder import RunFolder

WORDS = (
    "task=dino",
    "augmentation.repeats=1",
    "augmentation.colour_jitter=0",
    "regularisation.ema=null",
    "crops.local_size=8",
    "crops.num_local=3",
    "dino.outputs=32",
    "dino.hidden_dim=24",
    "dino.bottleneck_dim=8",
    "schedule.weight_decay_end=0.4",
    "optimizer.clip=3.0",
)


def newest(run: RunFolder) -> dict[str, Any]:
    path = Checkpoints(run.checkpoints).newest()
    assert path is not None
    return load_checkpoint(path)


def part_of(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in two micro-batches a step."""
    return run_in(tmp_path_factory.mktemp("dino") / "whole", *WORDS)


def test_a_run_leaves_its_teacher_as_a_backbone(whole: RunFolder) -> None:
    first, *_ = whole.read_metrics()
    assert {"loss_dino", "loss_teacher_entropy", "loss_kl", "loss_information", "loss_feature_deviation"} <= set(first)
    state = newest(whole)["model"]
    teacher, student = part_of(state, "teacher_trunk."), part_of(state, "trunk.")
    saved = vitrail.load_model(whole.model)
    assert saved.config.num_classes == 0
    assert saved.state_dict().keys() == teacher.keys()
    assert all(torch.equal(value, teacher[name]) for name, value in saved.state_dict().items())
    assert not all(torch.equal(value, student[name]) for name, value in teacher.items())


@pytest.mark.parametrize("how", ["one part", "three lanes", "recomputed", "two processes"])
def test_parts_lanes_and_processes_are_one_batch(how: str, whole: RunFolder, tmp_path: Path) -> None:
    """Centre and teacher move once a step, by the whole batch; every dropped path belongs to a crop."""
    words = {
        "one part": ("run.micro_batch=16",),
        "three lanes": ("run.micro_batch=4", "run.threads=3"),
        "recomputed": ("run.checkpointing=true",),
        "two processes": (),
    }
    if how == "two processes":
        run_two(tmp_path / "run", *WORDS)
        run = RunFolder(tmp_path / "run")
    else:
        run = run_in(tmp_path / "run", *WORDS, *words[how])
    found, expected = newest(run), newest(whole)
    assert found["objective"]["num_steps"] == 9
    torch.testing.assert_close(found["objective"]["centre"], expected["objective"]["centre"], rtol=1e-5, atol=1e-5)
    assert found["objective"]["centre"].abs().max() > 0.0
    for name, value in expected["model"].items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_two_processes_follow_the_statistics_of_one(tmp_path: Path) -> None:
    """Of the student's batch normalisation too, which sees the global crops and then the local ones in every step."""
    model = "model.settings={patch_size: 4, dim: 16, depth: 1, stem: conv_bn, norm: batch, layer_scale: 1.0}"
    words = (*WORDS, "model=patchconvnet_s60", model, "regularisation.drop_path=0", "lr=1e-5", "watch.pictures=null")
    one = newest(run_in(tmp_path / "one", *words, "run.micro_batch=16"))["model"]
    again = newest(run_in(tmp_path / "again", *words, "run.micro_batch=16", "run.checkpointing=true"))["model"]
    run_two(tmp_path / "two", *words)
    two = newest(RunFolder(tmp_path / "two"))["model"]
    tracked = {name: int(value) for name, value in one.items() if name.endswith("num_batches_tracked")}
    assert set(tracked.values()) == {9, 18}  # passes of the teacher and of the student, in 9 steps
    for name in (*tracked, *(name for name in one if "running" in name)):
        torch.testing.assert_close(again[name], one[name], rtol=1e-5, atol=1e-5, msg=name)
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-5, msg=name)


def test_a_run_that_is_killed_ends_with_the_same_bits(whole: RunFolder, tmp_path: Path) -> None:
    words = (*WORDS, "run.save_minutes=0.0001")
    process = start(tmp_path / "killed", *words)
    wait_for_step(process, tmp_path / "killed", 4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    finish(start(tmp_path / "killed", *words))
    found, expected = newest(RunFolder(tmp_path / "killed")), newest(whole)
    assert torch.equal(found["objective"]["centre"], expected["objective"]["centre"])
    assert found["objective"]["num_steps"] == expected["objective"]["num_steps"]
    assert found["objective"]["watch"]["step"] == expected["objective"]["watch"]["step"]
    assert all(torch.equal(found["model"][name], value) for name, value in expected["model"].items())


def test_the_prototypes_are_frozen_at_first(whole: RunFolder, tmp_path: Path) -> None:
    """An epoch has three steps: after the second the prototypes are those of the beginning, and the MLP is not."""
    recipe = tiny_recipe(*WORDS)
    begun = task_of(recipe).make_model({}).state_dict()
    early = newest(run_in(tmp_path / "early", *WORDS, "steps=2"))["model"]
    assert torch.equal(early["head.prototypes.weight"], begun["head.prototypes.weight"])
    assert not torch.equal(early["head.mlp.0.weight"], begun["head.mlp.0.weight"])
    assert not torch.equal(newest(whole)["model"]["head.prototypes.weight"], begun["head.prototypes.weight"])


def test_a_stage_with_labels_starts_from_the_teacher(tmp_path: Path) -> None:
    stages = "stages=[{}, {task: classify, augmentation.colour_jitter: 0.3, lr: 1.0e-9, epochs: 1}]"
    run = run_in(tmp_path / "run", *WORDS, stages, "run.keep=9", "regularisation.drop_path=0")
    states = [load_checkpoint(path) for path in sorted(run.checkpoints.glob("step_*.pt"))]
    teacher = part_of([state for state in states if state["stage"] == 0][-1]["model"], "teacher_trunk.")
    tuned = states[-1]["model"]
    assert states[-1]["stage"] == 1
    for name, value in teacher.items():
        torch.testing.assert_close(tuned[name], value, rtol=0.0, atol=1e-6)


def test_schedules_are_the_official_ones() -> None:
    settings = DinoSettings(teacher_temperature=0.07, teacher_temperature_epochs=3, frozen_epochs=1)
    course = Course(settings, total_steps=100, steps_per_epoch=10)
    temperatures = [course.teacher_temperature(step) for step in (0, 9, 10, 20, 30, 99)]
    assert temperatures == pytest.approx([0.04, 0.04, 0.055, 0.07, 0.07, 0.07])
    momenta = [course.teacher_momentum(step) for step in (0, 50, 100, 120)]
    assert momenta == pytest.approx([0.996, 0.998, 1.0, 1.0])
    assert [course.is_frozen(step) for step in (0, 9, 10)] == [True, True, False]


@pytest.mark.usefixtures("_short_plans")
def test_a_plan_measures_its_steps() -> None:
    plan = make_plan(tiny_recipe(*WORDS))
    assert plan.stages[0].step_speed > 0.0


def test_a_preview_shows_the_crops_of_the_run(tmp_path: Path) -> None:
    task, _, _ = opened()
    views = training_views(DinoTask, task.recipe, task.data.train, stage=0)
    batch = next(iter(task.make_loaders(num_parts=1, listing=None).train.epoch(0)))
    shown = views.views(Sample(0, int(batch.indices[0]), 0))
    crops = [crop for part in batch.crops for crop in part[0]]
    assert all(map(torch.equal, shown, crops))
    files = write_preview(tmp_path, views, evaluation_view=task.evaluation_view, num_images=1, num_views=5)
    assert len(files) == 2
    assert "2 of 16 x 16 + 3 of 8 x 8 px" in files[-1].read_text(encoding="utf-8")


# Families


class Listening(Silence):
    """A reporter that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def opened(*words: str) -> tuple[DinoTask, DinoModel, list[str]]:
    reporter = Listening()
    recipe = tiny_recipe(*WORDS, *words)
    assert isinstance(recipe, DinoRecipe)
    task = DinoTask(recipe, Site(reporter=reporter))
    model = task.make_model(task.describe(task.open().describe())).train()
    task.attach(model)
    return task, model, reporter.said


TIMM = "model.settings={options: {embed_dim: 24, depth: 1, num_heads: 2, patch_size: 4, dynamic_img_size: true}}"
FAMILIES = {
    "vit": ("model=deit_tiny", "model.settings={patch_size: 4, dim: 16, depth: 1, num_heads: 2}"),
    "cait": (),
    "patchconvnet": (
        "model=patchconvnet_s60",
        "model.settings={patch_size: 4, dim: 16, depth: 1, stem: conv_bn, layer_scale: 1.0}",
    ),
    "resmlp": ("model=resmlp_s12", "model.settings={patch_size: 4, dim: 16, depth: 1}"),
    "timm": ("model=timm/vit_tiny_patch16_224", TIMM),
    "timm of one size": ("model=timm/vit_tiny_patch16_224", TIMM.replace("true", "false")),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_from_small_crops(family: str) -> None:
    task, model, said = opened(*FAMILIES[family], "regularisation.drop_path=0")
    is_bound = family in ("resmlp", "timm of one size")
    lines = [line for line in said if "takes images of one size" in line]
    assert len(lines) == is_bound
    batch = next(iter(task.make_loaders(num_parts=1, listing=None).train.epoch(0)))
    shapes = [tuple(crops.shape) for crops in batch.crops]
    assert shapes == ([(16, 5, 3, 16, 16)] if is_bound else [(16, 2, 3, 16, 16), (16, 3, 3, 8, 8)])
    prepared = task.prepare(batch, StepContext(0, 0, 0))
    losses = task.make_objective(total_steps=9)(model, prepared)
    losses.total.backward()
    learning = {name: value for name, value in model.named_parameters() if not name.startswith("teacher_")}
    assert all(value.grad is not None for value in learning.values())
    assert all(value.grad is None and not value.requires_grad for value in model.teacher_trunk.parameters())


def test_small_crops_teach_the_positions() -> None:
    """The gradient of a crop alone reaches the positions of the whole grid, through their interpolation."""
    _, model, _ = opened(*FAMILIES["vit"])
    vectors = model.trunk_vectors(torch.randn(2, 3, 8, 8))
    (vectors * torch.randn_like(vectors)).sum().backward()
    positions = model.trunk.get_parameter("positions.patches")
    assert positions.grad is not None
    assert (positions.grad.abs().sum(dim=2) > 0.0).all()


def test_a_teacher_with_batch_normalisation_follows_its_own_batches() -> None:
    """As in the official code it normalises by its batch; what it drops, the student alone drops."""
    _, model, _ = opened(*FAMILIES["patchconvnet"])
    norms = [layer for layer in model.teacher_trunk.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert norms
    assert all(layer.training for layer in norms)
    assert not model.teacher_trunk.training
    means = norms[0].get_buffer("running_mean")
    before = means.clone()
    model((torch.randn(4, 2, 3, 16, 16) + 1.0,))
    assert not torch.equal(means, before)
    assert not any(layer.training for layer in model.eval().teacher_trunk.modules())


# Mistakes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("regularisation.ema=0.9",), "the teacher of dino is a moving average already"),
        (("augmentation.erasing=0.1",), "crops of dino have their own settings"),
        (("crops.local_size=20",), "local crops of 20 px are larger than the global ones of 16 px"),
        (("crops.local_size=10",), "crops.local_size=10: .*10x10"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        opened(*words)
    assert "\n" not in str(caught.value)


# Collapse

NUM_OUTPUTS, DIM = 32, 32


def learn(steps: int, *, lr: float, trunk: Model | None = None, patience: int = 100, **settings: Any) -> None:
    """DINO on 64 smooth patterns, by a transformer of one block; it stops where the watch sees a collapse."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_dim": 32, "bottleneck_dim": 16}
    chosen = DinoSettings.model_validate({"outputs": NUM_OUTPUTS, **sizes, "frozen_epochs": 0, **settings})
    if trunk is None:
        small = {"patch_size": 8, "dim": DIM, "depth": 1, "num_heads": 2}
        trunk = vitrail.create_model("deit_tiny", image_size=16, num_classes=0, **small)
    model = DinoModel(trunk, ProjectionSettings(num_outputs=NUM_OUTPUTS, **sizes)).train()
    made: list[Callable[..., Any]] = [constant_answers, uniform_answers, same_answers]
    remedies = ("one", "other")
    signs = [make(num_answers=NUM_OUTPUTS, remedies=remedies) for make in made]
    signs.append(constant_features(dim=summary_width(trunk), remedies=remedies))
    watch = CollapseWatch(signs, patience=patience, grace=patience)
    objective = Dino(chosen, course=Course(chosen, steps, steps), watch=watch)
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=lr)
    patterns = functional.interpolate(torch.randn(64, 3, 4, 4), size=(24, 24), mode="bicubic")
    for _ in range(steps):
        shown = patterns[torch.randint(64, (16,))]
        cuts = (16, 16) if trunk.takes_one_size else (16, 8)
        crops = tuple(torch.stack([_cut(shown, size) for _ in range(2)], dim=1) for size in cuts)
        losses = objective(model, CropsBatch(crops, torch.full((16,), -1), torch.arange(16)))
        losses.total.backward()
        objective.note(losses.seen)
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        optimizer.zero_grad()
        objective.after_step(model)


def feed(watch: CollapseWatch, signals: dict[str, float], *, steps: int = 400) -> None:
    for _ in range(steps):
        watch.see(signals)


def _cut(images: Tensor, size: int) -> Tensor:
    top, left = torch.randint(24 - size + 1, (2,)).tolist()
    part = images[:, :, top : top + size, left : left + size]
    return part * (1.0 + 0.2 * torch.randn(len(images), 1, 1, 1)) + 0.1 * torch.randn_like(part)


@pytest.mark.parametrize(
    ("settings", "lr", "told"),
    [
        ({"centre_momentum": 1.0}, 2e-3, r"collapsed \(constant\): the teacher gives all images the same answer"),
        ({"centre_momentum": 1.0}, 3e-4, r"collapsed \(constant\): the teacher gives all images the same answer"),
        ({"teacher_temperature": 1.0}, 2e-3, r"collapsed \(uniform\): the teacher finds all answers equally probable"),
        (
            {"teacher_momentum": 0.0, "teacher_momentum_end": 0.0},
            3e-3,
            r"collapsed \(constant\): the teacher's answer does not depend on the image",
        ),
    ],
    ids=["no centring", "no centring, slowly", "no sharpening", "no momentum"],
)
def test_each_collapse_is_named_within_a_few_hundred_steps(settings: dict[str, Any], lr: float, told: str) -> None:
    with pytest.raises(CollapseError, match=told):
        learn(400, lr=lr, **settings)


def test_a_healthy_run_is_left_alone() -> None:
    learn(250, lr=1e-3, teacher_momentum=0.99)


HEALTHY: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("deit_tiny", {"num_heads": 2, "init_std": None}),
    "cait": ("cait_xxs24", {"num_heads": 2, "init_std": None}),  # LayerScale of a shallow one is 0.1
    "resmlp": ("resmlp_s12", {"init_std": None}),
    "patchconvnet": ("patchconvnet_s60", {"stem": "conv_bn", "init_std": None, "layer_scale": 0.1}),
    "timm": ("timm/vit_tiny_patch16_224", {}),
}


@pytest.mark.parametrize("family", HEALTHY)
def test_healthy_runs_of_every_family_are_left_alone(family: str) -> None:
    """By a watch that is three times as impatient as that of a run."""
    name, own = HEALTHY[family]
    size: dict[str, Any] = {"patch_size": 8, "dim": 16, "depth": 1}
    if family == "timm":
        size = {"options": {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "dynamic_img_size": True}}
    trunk = vitrail.create_model(name, image_size=16, num_classes=0, **size, **own)
    learn(80, lr=1e-3, trunk=trunk, patience=30, teacher_momentum=0.99)


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("patchconvnet", "add init_std: null, layer_scale: 0.1 to model.settings, or start from weights by init="),
        ("vit", "add init_std: null to model.settings, or start from weights by init="),
        ("timm", "start from weights by init=, or raise lr"),
    ],
)
def test_a_run_that_does_not_begin_is_told_by_its_model(family: str, told: str) -> None:
    """Small LayerScale and first weights make all images alike: neither temperature nor momentum would help."""
    small = "model.settings={patch_size: 4, dim: 16, depth: 1, stem: conv_bn}"  # LayerScale is the model's own
    task, _, _ = opened(*(("model=patchconvnet_s60", small) if family == "patchconvnet" else FAMILIES[family]))
    watch = task.make_objective(total_steps=9).watch
    signals = {"teacher_entropy": 3.46, "kl": 1e-4, "information": 1e-4, "feature_deviation": 1e-5}
    with pytest.raises(CollapseError, match=f"the run has not begun to learn .*make images alike; {told}"):
        feed(watch, signals)


def test_answers_that_are_even_from_the_first_step_are_not_blamed_on_the_weights() -> None:
    """A temperature of 1 makes them so, whatever the features are: these differ between images here."""
    task, _, _ = opened(*FAMILIES["vit"])
    watch = task.make_objective(total_steps=9).watch
    entropy = math.log(task.recipe.dino.outputs)
    with pytest.raises(CollapseError, match=r"has collapsed \(uniform\): .*lower dino.teacher_temperature"):
        feed(watch, {"teacher_entropy": entropy, "kl": 1e-4, "information": 1e-4, "feature_deviation": 0.1})
