"""Runs that learn an embedding: Grafit's losses, what they remember, and how the run is measured (thesis chapter 2)."""

import math
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import finish, model_of, run_in, run_two, start, task_of, tiny_recipe, wait_for_step
from torch import Tensor
from torch.nn import functional

import vitrail
from vitrail.cli import main
from vitrail.data.contract import ImageBatch, Level
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.evaluation.probe_data import Labelled
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Objective
from vitrail.tasks.embed.evaluator import NeighbourAnswers
from vitrail.tasks.embed.grafit import Grafit
from vitrail.tasks.images import image_task
from vitrail.tasks.images.labelled_data import LabelledData
from vitrail.training.loop import planning
from vitrail.training.loop.planning import make_plan
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.run_folder import RunFolder

LINEAR = (
    "task=embed",
    "embedding.projector=linear",
    "embedding.dim=8",
    "embedding.hidden_dim=12",
    "embedding.target_decay=0.9",
)
GRAFIT = (*LINEAR, "embedding.views=2", "augmentation.repeats=1", "regularisation.drop_path=0")
SNCA = (*LINEAR, "embedding.instance=0", "regularisation.drop_path=0")


def newest(run: RunFolder) -> dict[str, object]:
    path = Checkpoints(run.checkpoints).newest()
    assert path is not None
    return load_checkpoint(path)


def embedding_model(path: Path) -> EmbeddingModel:
    model = vitrail.load_model(path)
    assert isinstance(model, EmbeddingModel)
    return model


def test_a_run_learns_both_losses_and_leaves_a_model_without_its_predictor(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", *GRAFIT, "embedding.projector=mlp")
    records = run.read_metrics()
    assert {"loss_knn", "loss_instance"} <= set(records[0])
    evaluation = records[-1]
    assert evaluation["kind"] == "eval"
    assert 0.0 <= evaluation["top1"] <= 100.0
    assert math.isfinite(evaluation["negative_log_likelihood"])
    model = embedding_model(run.model)
    assert model.predictor is None
    assert model.config.num_classes == 0
    vectors = model(torch.rand(2, 3, 16, 16))
    assert vectors.shape == (2, 8)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize(("words", "num_steps"), [((), 9), (("lr=1e-12", "regularisation.early_stop=1"), 6)])
def test_at_the_end_the_memory_holds_what_the_final_weights_say_of_the_training_images(
    words: tuple[str, ...], num_steps: int, tmp_path: Path
) -> None:
    run = run_in(tmp_path / "run", *GRAFIT, *words)
    state = newest(run)
    objective = state["objective"]
    assert state["step"] == num_steps
    assert isinstance(objective, dict)
    model, recipe = embedding_model(run.model), tiny_recipe(*GRAFIT)
    data, trained = task_of(recipe).open(), vitrail.load_trained(tmp_path / "run")
    assert isinstance(data, LabelledData)
    sampler = Sampler(data.num_train, batch_size=64, is_training=False)
    [batch] = ImageLoader(data.train, transform=trained.view, sampler=sampler).epoch(0)
    normalize = trained.normalize
    with torch.no_grad():
        vectors = functional.normalize(model.project(normalize(batch.images)), dim=1)
    assert torch.allclose(objective["memory"]["vectors"][batch.indices], vectors, atol=1e-5)


def test_a_run_killed_at_a_random_step_ends_with_the_same_bits_memory_and_target_included(tmp_path: Path) -> None:
    words = (*GRAFIT, "embedding.projector=mlp", "embedding.target_schedule=byol", "epochs=6", "run.save_minutes=1e-4")
    killed = tmp_path / "killed"
    process = start(killed, *words)
    wait_for_step(process, killed, random.Random(os.getpid()).randrange(2, 14))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(killed, *words))
    whole = run_in(tmp_path / "whole", *words)
    first, second = newest(RunFolder(killed)), newest(whole)
    assert_equal(first["objective"], second["objective"])
    assert_equal(first["model"], second["model"])


def assert_equal(first: object, second: object) -> None:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_equal(first[name], second[name])
    else:
        assert first == second


def test_two_processes_share_memory_and_statistics_and_give_the_losses_and_answers_of_one(tmp_path: Path) -> None:
    # Projector, predictor and target network normalise by the images of both processes: 8 at a time, as in one.
    # Features that differ from image to image, for rounding is all that is left where statistics are of equal ones.
    spread = ("model.settings.layer_scale=1", "model.settings.init_std=null", "optimizer.name=sgd")
    words = (*GRAFIT, *spread, "embedding.projector=mlp", "data=shapes:size=16,count=49,val=25")
    run_two(tmp_path / "two", *words, "run.micro_batch=4")
    one, two = run_in(tmp_path / "one", *words, "run.micro_batch=8"), RunFolder(tmp_path / "two")

    def numbers(run: RunFolder, name: str) -> dict[int, float]:
        return {record["step"]: record[name] for record in run.read_metrics() if name in record}

    first, second = numbers(one, "loss"), numbers(two, "loss")
    common = sorted(first.keys() & second.keys())  # a slow run writes down more of its steps
    assert {1, max(first)} <= set(common)
    assert [second[step] for step in common] == pytest.approx([first[step] for step in common], rel=1e-4)
    assert numbers(two, "top1") == pytest.approx(numbers(one, "top1"), abs=1e-9)
    memories = [newest(run)["objective"]["memory"]["vectors"] for run in (one, two)]  # type: ignore[index]
    assert memories[0].shape == (49, 8)
    assert torch.allclose(memories[0], memories[1], atol=1e-3)


def test_with_a_classifier_the_run_is_measured_by_it(tmp_path: Path) -> None:
    words = (*GRAFIT, "embedding.knn=0", "embedding.cross_entropy=1", "embedding.retrieve=trunk", "epochs=1")
    run = run_in(tmp_path / "run", *words)
    assert newest(run)["objective"]["memory"] is None  # type: ignore[index]
    trained = vitrail.load_trained(run.path)
    assert trained.classes is not None
    assert trained.model(torch.rand(2, 3, 16, 16)).shape == (2, len(trained.classes))


def test_neighbours_answer_by_hand() -> None:
    trunk = vitrail.create_model("deit_tiny", image_size=16, patch_size=8, dim=12, depth=1, num_heads=2, num_classes=0)
    model = EmbeddingModel(trunk, EmbeddingSettings(projector="none", has_predictor=False)).eval()
    images = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        here = functional.normalize(model.project(images), dim=1)
    away = functional.normalize(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)), dim=1)
    away = functional.normalize(away - (away @ here.T) * here, dim=1)  # at cosine 0 of the image
    train = Labelled(torch.cat([here, away]), torch.tensor([2] + 6 * [0] + 6 * [1]), 3)
    with torch.no_grad():
        probabilities = NeighbourAnswers(model, train)(images).exp()
    # exp(1 / 0.05) of the one neighbour against exp(0) of each of the others
    assert probabilities[0, 2].item() == pytest.approx(1.0, abs=1e-5)
    assert probabilities[0, :2].sum().item() < 1e-4


def test_an_embedding_begins_with_the_trunk_of_a_classifier_and_a_classifier_with_that_of_an_embedding(
    tmp_path: Path,
) -> None:
    shape = "model.settings={patch_size: 4, dim: 16, depth: 2, num_heads: 2}"
    classifier = run_in(tmp_path / "classifier", "epochs=1", shape)
    recipe = tiny_recipe(*GRAFIT, f"init={classifier.path}")
    model = model_of(recipe, num_classes=4)
    assert isinstance(model, EmbeddingModel)
    known = vitrail.load_model(classifier.model).state_dict()
    own = model.trunk.state_dict()
    assert own
    assert all(torch.equal(own[name], known[name]) for name in own)
    embedding = run_in(tmp_path / "embedding", *GRAFIT, "epochs=1")
    model = model_of(tiny_recipe(f"init={embedding.path}"), num_classes=4)
    known = embedding_model(embedding.model).trunk.state_dict()
    assert all(torch.equal(model.state_dict()[name], known[name]) for name in known)
    again = model_of(tiny_recipe(*GRAFIT, f"init={embedding.path}"), num_classes=4)
    known = embedding_model(embedding.model).state_dict()
    assert all(torch.equal(again.state_dict()[name], known[name]) for name in known)


def test_an_embedding_sees_other_sizes_and_is_folded(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", *GRAFIT, "epochs=1")
    larger = vitrail.load_trained(run.path).seeing(image_size=24)
    images = torch.rand(2, 3, 24, 24)
    with torch.no_grad():
        vectors = larger.model(images)
        assert vectors.shape == (2, 8)
        assert torch.allclose(vitrail.fold(larger.model)(images), vectors, atol=1e-5)


def test_only_a_part_of_the_trunk_may_learn_and_layers_have_their_rates() -> None:
    recipe = tiny_recipe(*GRAFIT, "train_only=attention", "optimizer.layer_decay=0.5")
    model = model_of(recipe, num_classes=4)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("projector.") for name in learning)
    assert any("communication" in name for name in learning)
    assert not any("feed_forward" in name for name in learning)
    optimizer = recipe.optimizer.build(model, lr=recipe.lr)
    scales = {name: group["lr_scale"] for group in optimizer.param_groups for name in group["param_names"]}
    assert scales["projector.weight"] == 1.0
    first = next(name for name in scales if name.startswith("trunk.blocks.0."))
    assert scales[first] < 1.0


def test_clusters_of_a_first_model_are_the_labels_of_a_second(tmp_path: Path) -> None:
    first = run_in(tmp_path / "first", "epochs=1")
    words = ("clusters.number=5", f"clusters.of={first.path}", "epochs=1")
    second = run_in(tmp_path / "second", *words)
    classes = second.read_json(second.task_file)
    assert classes["level"] == "cluster"
    assert classes["classes"] == [f"cluster_{number}" for number in range(5)]
    assert vitrail.load_trained(second.path).num_classes == 5
    # A run that goes on reads the clusters it began with: the first model may be gone by then.
    (tmp_path / "first").rename(tmp_path / "gone")
    again = run_in(tmp_path / "second", *words)
    assert again.read_json(again.task_file) == classes


def make_objective(recipe: Recipe) -> tuple[EmbeddingModel, Objective[ImageBatch]]:
    task = task_of(recipe)
    model = task.make_model(task.open().describe()).train()
    task.attach(model)
    assert isinstance(model, EmbeddingModel)
    return model, task.make_objective(total_steps=1)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("embedding.views=2",), "task classify has no 'embedding.views': it is a setting of task=embed"),
        ((*LINEAR, "embedding.views=1"), "set embedding.views to 2 or more"),
        ((*GRAFIT, "blend.mixup=0.8"), "task embed has no 'blend.mixup': it is a setting of task=classify or"),
        ((*GRAFIT, "teacher=somewhere"), "task embed has no 'teacher.model': it is a setting of task=distill"),
        ((*GRAFIT, "sharding=full"), "not learnt with sharding=full"),
        ((*GRAFIT, "init=weights", "head_start=probe"), "head_start=probe is for classifiers"),
        ((*SNCA, "embedding.knn=0", "embedding.cross_entropy=1"), "no loss reads the projector"),
        ((*SNCA, "embedding.knn=0", "embedding.projector=none"), "there is nothing to learn"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_objective(tiny_recipe(*words))


def test_two_processes_train_on_the_clusters_that_one_has_found(tmp_path: Path) -> None:
    first = run_in(tmp_path / "first", "epochs=1")
    words = ("clusters.number=5", f"clusters.of={first.path}", "epochs=1", "regularisation.drop_path=0")
    run_two(tmp_path / "two", *words)
    one, two = run_in(tmp_path / "one", *words), RunFolder(tmp_path / "two")
    assert (one.path / "clusters_0.safetensors").read_bytes() == (two.path / "clusters_0.safetensors").read_bytes()
    top1 = [[record["top1"] for record in run.read_metrics() if "top1" in record] for run in (one, two)]
    assert top1[0] == pytest.approx(top1[1], abs=1e-9)


def test_clusters_need_a_number_and_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"add clusters\.of=RUN"):
        run_in(tmp_path / "first", "clusters.number=5")
    with pytest.raises(ValueError, match=r"clusters\.number=49 is more than the 48 images of train: lower it"):
        run_in(tmp_path / "third", "clusters.number=49", "clusters.of=somewhere")


def test_images_of_one_class_are_told_apart_by_views_and_clusters(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "only").mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (16, 16), (60 * number, 0, 0)).save(tmp_path / split / "only" / f"{number}.png")
    data = f"data={tmp_path}"
    with pytest.raises(ValueError, match="has 1 class: there is nothing to tell apart"):
        task_of(tiny_recipe(data)).open()
    with pytest.raises(ValueError, match="has 1 class: there is nothing to tell apart"):
        task_of(tiny_recipe(data, *SNCA)).open()
    for words in (GRAFIT, (*SNCA, "embedding.triplet=1")):
        assert len(task_of(tiny_recipe(data, *words)).open().describe()["classes"]) == 1
    clustered = task_of(tiny_recipe(data, "clusters.number=2", "clusters.of=somewhere")).open()
    assert clustered.describe()["classes"] == ["cluster_0", "cluster_1"]


def test_an_embedding_of_images_with_several_labels_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tiny_recipe(*GRAFIT))
    level = Level(("one", "two"), np.ones((48, 2), dtype=bool))
    monkeypatch.setattr(LabelledData, "labels", property(lambda data: level))
    with pytest.raises(ValueError, match="an embedding is learnt from one label an image"):
        task.open()


def test_verbs_that_name_classes_say_that_an_embedding_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_in(tmp_path / "run", *GRAFIT, "epochs=1")
    for words in (["evaluate", str(run.path)], ["predict", str(run.path), str(tmp_path)]):
        assert main(words) == 2
        assert "has no classifier, it gives embeddings: search with vitrail gallery" in capsys.readouterr().err
    assert main(["probe", str(run.path), "method=knn"]) == 0


@pytest.mark.usefixtures("_short_plans")
def test_a_plan_measures_a_step_with_views_and_clusters() -> None:
    plan = make_plan(tiny_recipe(*GRAFIT, "epochs=1"))
    assert plan.stages[0].step_speed > 0.0
    plan = make_plan(tiny_recipe("clusters.number=5", "clusters.of=unknown", "epochs=1"))
    assert plan.stages[0].step_speed > 0.0


def test_a_plan_counts_the_loading_of_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[int, ...]] = []

    class Watched(ImageLoader):
        def epoch(self, number: int, *, start_step: int = 0) -> Iterator[ImageBatch]:
            for batch in super().epoch(number, start_step=start_step):
                loaded.append(tuple(batch.images.shape[1:]))
                yield batch

    monkeypatch.setattr(image_task, "ImageLoader", Watched)
    monkeypatch.setattr(planning, "_SECONDS", 0.0)
    make_plan(tiny_recipe(*GRAFIT, "epochs=1"))
    assert set(loaded) == {(2, 3, 16, 16)}


def test_a_batch_of_views_has_its_memory_of_first_views_only() -> None:
    model, objective = make_objective(tiny_recipe(*GRAFIT))
    assert isinstance(objective, Grafit)
    assert objective.memory is not None
    before = objective.memory.vectors.clone()
    batch = ImageBatch(torch.rand(3, 2, 3, 16, 16), torch.tensor([0, 1, 2]), torch.tensor([4, 7, 9]))
    objective.note(objective(model, batch).seen)
    objective.after_step(model)
    moved = (objective.memory.vectors != before).any(dim=1).nonzero().flatten().tolist()
    assert moved == [4, 7, 9]
