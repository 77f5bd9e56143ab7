"""A run from its first step to its model; and what it says when it can't go on."""

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import model_of, run_in, tiny_recipe
from torch import nn

import vitrail
from vitrail.inference.trained import load_trained
from vitrail.tasks.classify.supervised import Supervised
from vitrail.training.loop import stage, stages
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.report import summarize
from vitrail.training.runs.run_folder import RunFolder


def weights_of(run: RunFolder) -> dict[str, torch.Tensor]:
    return vitrail.load_model(run.model).state_dict()


def assert_same_weights(first: RunFolder, second: RunFolder) -> None:
    one, other = weights_of(first), weights_of(second)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "finished")


def test_a_run_leaves_its_recipe_metrics_predictions_and_model(finished: RunFolder) -> None:
    records = finished.read_metrics()
    evaluations = [record for record in records if record["kind"] == "eval"]
    assert [record["epoch"] for record in evaluations] == [1, 2, 3]
    assert evaluations[-1]["count"] == 24
    assert records[0]["step"] == 1
    assert [record for record in records if record["kind"] == "train"][-1]["step"] == 9
    assert all(np.isfinite(record["loss"]) for record in records if record["kind"] == "train")
    classes = json.loads(finished.task_file.read_text())
    assert len(classes["classes"]) == 24
    assert len(classes["coarse"]["of"]) == 24
    predictions = np.load(finished.path / "predictions.npz", allow_pickle=False)
    assert predictions["indices"].tolist() == list(range(24))
    accuracy = 100 * np.mean(predictions["predicted"] == predictions["targets"])
    assert accuracy == pytest.approx(evaluations[-1]["top1"])
    assert (finished.model / "task.json").is_file()
    assert Checkpoints(finished.checkpoints).steps()[-1] == 9


def test_the_saved_model_is_the_moving_average(finished: RunFolder) -> None:
    newest = Checkpoints(finished.checkpoints).newest()
    assert newest is not None
    average = load_checkpoint(newest)["average"]["weights"]
    saved = weights_of(finished)
    assert all(torch.equal(saved[name], value) for name, value in average.items())


def test_a_run_is_a_function_of_its_recipe(finished: RunFolder, tmp_path: Path) -> None:
    assert_same_weights(finished, run_in(tmp_path / "again"))


def test_another_seed_is_another_run(finished: RunFolder, tmp_path: Path) -> None:
    other = weights_of(run_in(tmp_path / "other", "seed=1"))
    assert any(not torch.equal(value, other[name]) for name, value in weights_of(finished).items())


def test_a_finished_run_stays_as_it_is(finished: RunFolder) -> None:
    before = (finished.metrics_file.read_text(), weights_of(finished))
    run_in(finished.path)
    assert finished.metrics_file.read_text() == before[0]
    assert all(torch.equal(value, before[1][name]) for name, value in weights_of(finished).items())


def test_accumulation_changes_nothing_but_rounding(finished: RunFolder, tmp_path: Path) -> None:
    words = ("epochs=1", "model.settings.dropout=0.1")
    losses, weights = [], []
    for micro_batch in (16, 4, 6):  # the last in parts of 4, 6 and 6, so that images that are mixed stay together
        run = run_in(tmp_path / str(micro_batch), *words, f"run.micro_batch={micro_batch}")
        losses.append([record["loss"] for record in run.read_metrics() if record["kind"] == "train"])
        weights.append(weights_of(run))
    for number in (1, 2):
        assert losses[number] == pytest.approx(losses[0], rel=1e-5)
        assert all(torch.allclose(value, weights[0][name], atol=1e-6) for name, value in weights[number].items())


def test_a_folder_of_another_recipe_is_refused(finished: RunFolder) -> None:
    with pytest.raises(
        ValueError, match=r"holds a run of another recipe \(epochs was 3.0, now 4.0\): give another out="
    ):
        run_in(finished.path, "epochs=4")
    run_in(finished.path, "workers=1", "run.keep=3")  # how it is computed may change


def test_a_run_that_failed_before_its_first_checkpoint_may_be_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown model 'cait_xxs25'"):
        run_in(tmp_path / "run", "model=cait_xxs25")
    run = run_in(tmp_path / "run", "epochs=1")
    assert "name: cait_xxs24" in run.recipe_file.read_text()


def test_settings_that_may_change_are_written_down(finished: RunFolder) -> None:
    run_in(finished.path, "run.keep=4")
    assert "keep: 4" in finished.recipe_file.read_text()
    run_in(finished.path)


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="has other files in it and no run"):
        run_in(tmp_path)


def test_changed_data_is_refused(finished: RunFolder) -> None:
    with pytest.raises(ValueError, match="was begun with other data"):
        run_in(finished.path, "data=shapes:size=16,count=72,val=24")


def test_a_loss_that_is_not_a_number_stops_the_run_and_says_where(tmp_path: Path) -> None:
    words = ("lr=1e30", "schedule.warmup_epochs=0", "regularisation.ema=null")
    with pytest.raises(ValueError, match=r"^step \d+ \(epoch .*first not finite: .*samples .*try a lower lr") as error:
        run_in(tmp_path / "run", *words)
    assert "\n" not in str(error.value)


def test_steps_that_are_not_finite_can_be_skipped(tmp_path: Path) -> None:
    words = ("lr=1e30", "schedule.warmup_epochs=0", "regularisation.ema=null", "run.on_nan=skip", "epochs=1")
    run = run_in(tmp_path / "run", *words)
    newest = Checkpoints(run.checkpoints).newest()
    assert newest is not None
    assert load_checkpoint(newest)["num_skipped"] > 0


def test_stages_go_on_from_each_other_at_another_resolution(tmp_path: Path) -> None:
    stages = "stages=[{epochs: 1}, {epochs: 1, image_size: 24, lr: 1e-4, augmentation.repeats: 1}]"
    run = run_in(tmp_path / "run", stages)
    evaluations = [record for record in run.read_metrics() if record["kind"] == "eval"]
    assert [(record["stage"], record["epoch"]) for record in evaluations] == [(0, 1), (1, 1)]
    assert vitrail.load_model(run.model).config.image_size == 24


def test_a_run_can_begin_with_the_weights_of_another(finished: RunFolder, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", f"init={finished.path}", "epochs=1", "lr=1e-12", "optimizer.weight_decay=0")
    saved = weights_of(finished)
    assert all(torch.allclose(value, saved[name], atol=1e-6) for name, value in weights_of(run).items())


def test_early_stopping_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "regularisation.early_stop=2", "lr=1e-12", "schedule.warmup_epochs=0", "epochs=30")
    assert max(record["epoch"] for record in run.read_metrics()) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("objective.loss=bce", "objective.class_weights=true", "data.balanced=true"),
        ("optimizer.name=lamb", "optimizer.clip=1"),
        ("optimizer.name=sgd", "schedule.kind=step", "schedule.decay_epochs=0.5", "run.checkpointing=true"),
        ("data.level=coarse", "augmentation.policy=three", "augmentation.crop=simple", "optimizer.layer_decay=0.7"),
        ("model=timm/resnet10t", "model.settings={}", "image_size=32", "augmentation.policy=rand", "steps=2"),
        ("run.precision=bf16", "blend.per=pair", "steps=2"),
    ],
    ids=lambda words: words[0],
)
def test_every_kind_of_setting_trains(tmp_path: Path, words: tuple[str, ...]) -> None:
    run = run_in(tmp_path / "run", "epochs=1", *words)
    assert run.read_metrics()[-1]["kind"] == "eval"
    assert (run.model / "model.safetensors").is_file()


def test_a_later_stage_may_have_other_data_and_classes(tmp_path: Path) -> None:
    stages = "stages=[{epochs: 1}, {epochs: 1, data.level: coarse}]"
    run = run_in(tmp_path / "run", stages)
    assert len(json.loads(run.task_file.read_text())["classes"]) == 6
    assert vitrail.load_model(run.model).config.num_classes == 6
    run_in(run.path, stages)  # and it is finished


def test_early_stopping_is_judged_where_the_run_is_evaluated(tmp_path: Path) -> None:
    words = ("regularisation.early_stop=1", "evaluation.every=2", "lr=1e-12", "schedule.warmup_epochs=0", "epochs=9")
    run = run_in(tmp_path / "run", *words)
    evaluated = [record["epoch"] for record in run.read_metrics() if record["kind"] == "eval"]
    assert evaluated == [2.0, 4.0]  # the second is no better than the first


def test_a_run_that_was_stopped_early_is_finished(tmp_path: Path) -> None:
    words = ("regularisation.early_stop=2", "lr=1e-12", "schedule.warmup_epochs=0", "epochs=30")
    run = run_in(tmp_path / "run", *words)
    before = vitrail.load_model(run.model).state_dict()
    metrics = run.read_metrics()
    run_in(run.path, *words)
    after = vitrail.load_model(run.model).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert run.read_metrics() == metrics


def test_recomputing_blocks_changes_nothing_and_leaves_no_gradient_of_the_trial(tmp_path: Path) -> None:
    words = ("epochs=1", "run.micro_batch=null", "optimizer.clip=null", "schedule.warmup_epochs=0", "batch_size=8")
    plain = run_in(tmp_path / "plain", *words)
    recomputed = run_in(tmp_path / "recomputed", *words, "run.checkpointing=true")
    first = [next(record["gradient_norm"] for record in run.read_metrics()) for run in (plain, recomputed)]
    assert first[0] == pytest.approx(first[1], rel=1e-4)


def test_models_of_timm_recompute_their_blocks_too(tmp_path: Path) -> None:
    words = ("model=timm/vit_tiny_patch16_224", "model.settings={}", "epochs=1", "steps=1", "run.checkpointing=true")
    assert run_in(tmp_path / "run", *words).model.is_dir()


def test_a_killed_second_stage_with_other_classes_goes_on(tmp_path: Path) -> None:
    words = ("stages=[{epochs: 1}, {epochs: 2, data.level: coarse}]",)
    whole = run_in(tmp_path / "whole", *words, "run.keep=100")
    killed = tmp_path / "killed"
    shutil.copytree(whole.path, killed)  # with the classes of the second stage, and checkpoints of the first only
    shutil.rmtree(killed / "model")
    for path in (killed / "checkpoints").glob("*1000*.pt"):
        path.unlink()
    assert len(load_trained(killed).class_names) == 24
    run = run_in(killed, *words)
    one, other = (vitrail.load_model(folder.model).state_dict() for folder in (whole, run))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_as_many_other_classes_start_with_a_new_classifier(tmp_path: Path) -> None:
    run = run_in(tmp_path / "first", "epochs=1")
    names = json.loads((run.model / "task.json").read_text())
    weights = vitrail.load_model(run.model).state_dict()["head.linear.weight"]
    recipe = tiny_recipe(f"init={run.path}")
    same = model_of(recipe, num_classes=24, classes=names["classes"])
    other = model_of(recipe, num_classes=24, classes=[f"new {name}" for name in names["classes"]])
    assert torch.equal(same.state_dict()["head.linear.weight"], weights)
    assert not torch.equal(other.state_dict()["head.linear.weight"], weights)


@pytest.mark.parametrize("words", [(), ("model.settings.stem=conv_bn",)])
def test_the_number_of_cores_changes_no_bit_where_they_are_lanes(tmp_path: Path, words: tuple[str, ...]) -> None:
    words = ("epochs=1", "run.micro_batch=4", *words)
    one, three = (run_in(tmp_path / count, *words, f"run.threads={count}") for count in "13")
    assert [json.loads(run.plan_file.read_text())["threads_0"] for run in (one, three)] == [1, 1]
    assert_same_weights(one, three)


def test_with_batch_normalisation_the_micro_batch_depends_on_no_clock() -> None:
    model = vitrail.create_model("timm/resnet18", num_classes=3)
    size = choose_micro_batch(
        model,
        lambda model, count: model(torch.rand(count, 3, 32, 32)).sum(),
        num_samples=32,
        device=torch.device("cpu"),
    )
    assert size == 32


@pytest.mark.parametrize(
    ("num_samples", "num_lanes", "size"),
    [(64, 1, 22), (64, 2, 16), (64, 3, 22), (64, 4, 16), (50, 2, 14), (20, 2, 10), (256, 8, 16)],
)
def test_all_lanes_compute_until_the_end_of_a_step(
    num_samples: int, num_lanes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_samples = 2 * 512 * 2**20 // 23  # bytes, of which 22 samples are what a micro-batch may keep
    monkeypatch.setattr("vitrail.training.loop.micro_batch.count_kept_bytes", lambda model, run: two_samples)
    found = choose_micro_batch(
        nn.Linear(1, 1),
        lambda model, count: model(torch.ones(count, 1)).sum(),
        num_samples=num_samples,
        num_lanes=num_lanes,
        device=torch.device("cpu"),
    )
    assert found == size
    assert num_lanes == 1 or -(-num_samples // found) % num_lanes == 0


def test_steps_that_are_not_finite_can_be_skipped_in_half_precision_too(tmp_path: Path) -> None:
    words = ("epochs=1", "lr=1e30", "schedule.warmup_epochs=0", "optimizer.clip=null", "run.on_nan=skip")
    run = run_in(tmp_path / "run", *words, "precision=fp16", "blend.mixup=0", "blend.cutmix=0")
    [last] = [record for record in run.read_metrics() if record["kind"] == "train"][-1:]
    assert last["num_skipped"] >= 1
    assert "skipped because loss or gradients were not finite" in summarize(run.path)


def test_a_run_goes_on_in_another_precision(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "epochs=2", "precision=fp32", "run.keep=100")
    shutil.rmtree(run.model)
    for path in sorted((run.path / "checkpoints").glob("step_*.pt"))[1:]:
        path.unlink()
    assert run_in(run.path, "epochs=2", "precision=fp16").model.is_dir()


def test_what_the_branches_add_is_written_down_at_each_evaluation_and_drawn(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "evaluation.layers=true")
    noted = [record for record in run.read_metrics() if record["kind"] == "layers"]
    assert [record["epoch"] for record in noted] == [1.0, 2.0, 3.0]
    assert all(len(record["ratios"]["self-attention"]) == 2 for record in noted)
    assert noted[0]["ratios"] != noted[-1]["ratios"]
    model = vitrail.load_model(run.model)
    found = vitrail.inspect_model(model, torch.rand(2, 3, 16, 16), records=run.read_metrics())
    page = found.write(tmp_path / "inside").read_text(encoding="utf-8")
    assert "ratios_by_epoch.csv" in {path.name for path in (tmp_path / "inside").iterdir()}
    assert "ratios_by_epoch" in page


def test_a_step_that_overflows_in_half_precision_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, updates, skipped = [0], [0], [0]
    clip, update = stage.clip_gradients, MovingAverage.update

    def overflow(model: torch.nn.Module, limit: float | None) -> torch.Tensor:
        steps[0] += 1
        norm = clip(model, limit)
        return norm * torch.inf if steps[0] == 2 else norm

    def count(average: MovingAverage, model: torch.nn.Module) -> None:
        updates[0] += 1
        update(average, model)

    monkeypatch.setattr(stage, "clip_gradients", overflow)
    monkeypatch.setattr(MovingAverage, "update", count)
    monkeypatch.setattr(Supervised, "after_step", lambda objective, model: skipped.append(1))
    run_in(tmp_path / "run", "epochs=1", "precision=fp16")
    assert steps[0] == 3
    assert updates[0] == len(skipped) - 1 == 2


def test_a_checkpoint_leaves_the_memory_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("epochs=2", "run.keep=100")
    run = run_in(tmp_path / "run", *words)
    (run.checkpoints / "step_000000006.pt").unlink()
    shutil.rmtree(run.model)
    load, kept = stages.load_run_state, list[weakref.ref[torch.Tensor]]()

    def remember(path: Path, *, num_stages: int, is_divided: bool) -> dict[str, Any]:
        state = load(path, num_stages=num_stages, is_divided=is_divided)
        tensors = [*state["model"].values(), *(one["exp_avg"] for one in state["optimizer"]["state"].values())]
        kept.extend(map(weakref.ref, tensors))
        return state

    begin = stage.Stage.run

    def look(self: stage.Stage) -> None:
        assert self.step == 3
        assert kept
        own = {id(value) for value in self.model.state_dict().values()}
        moments = {id(one["exp_avg"]) for one in self.optimizer.state.values()}
        alive = [tensor for found in kept if (tensor := found()) is not None]
        assert all(id(tensor) in own | moments for tensor in alive)
        begin(self)

    monkeypatch.setattr(stages, "load_run_state", remember)
    monkeypatch.setattr(stage.Stage, "run", look)
    run_in(run.path, *words)


def test_a_stage_that_cannot_be_learnt_is_refused_before_the_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no teacher given: add teacher=RUN"):
        run_in(tmp_path / "run", "stages=[{epochs: 1}, {epochs: 1, task: distill}]")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_groups_are_mixed_alike_in_any_number_of_micro_batches(tmp_path: Path) -> None:
    # A model whose first answers are far from even, so that what it is shown matters.
    answering = ("model.settings.layer_scale=1", "model.settings.init_std=null")
    words = ("steps=1", "regularisation.drop_path=0", "augmentation.repeats=3", "blend.group_size=6", *answering)
    settings = {"one": words, "three": (*words, "run.micro_batch=6"), "none": (*words, "blend.group_size=null")}
    losses: dict[str, float] = {}
    for name, changes in settings.items():
        run = run_in(tmp_path / name, "run.micro_batch=16", *changes)
        losses[name] = next(record["loss"] for record in run.read_metrics() if record["kind"] == "train")
    assert losses["one"] == pytest.approx(losses["three"], rel=1e-6)
    assert losses["one"] != pytest.approx(losses["none"], rel=1e-4)
