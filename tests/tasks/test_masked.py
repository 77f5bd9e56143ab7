"""Masked image modelling and its tokenizer as runs: what they learn, leave, resume and refuse."""

import contextlib
import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_runs import finish, run_in, run_two, start, task_of, tiny_recipe, wait_for_step

import vitrail
from vitrail.cli import main
from vitrail.evaluation.together import Alone
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.storage.tensors import read_tensors
from vitrail.tasks.contract import StepContext
from vitrail.tasks.masked.task import MaskedModelling
from vitrail.tasks.tokenizer.objective import Quantisation, TokenizerBatch
from vitrail.tasks.tokenizer.settings import TokenizerSettings
from vitrail.tasks.unlabelled.collapse import CollapseError
from vitrail.training.runs.report import write_report
from vitrail.training.runs.run_folder import RunFolder

PLAIN = ("augmentation.repeats=1", "regularisation.ema=null", "watch.probe_every=null")
MASKED = ("task=masked", *PLAIN)
PIXELS = (*MASKED, "masked.target=pixels", "masked.mask=random", "masked.share=0.5")
MAE = (*PIXELS, "masked.form=mae", "masked.decoder_dim=8", "masked.decoder_depth=1", "masked.decoder_heads=2")
SMALLER = ("data=shapes:size=16,count=8,val=4", "batch_size=8")
TOKENIZER = (
    "task=tokenizer",
    *PLAIN,
    "model.name=tokenizer",
    "model.settings={}",
    "regularisation.drop_path=null",
    "tokenizer.patch_size=4",
    "tokenizer.codes=16",
    "tokenizer.dim=16",
    "tokenizer.code_dim=4",
    "tokenizer.window=4",
    "lr=3e-3",
)
CLUSTERS = (*TOKENIZER, "tokenizer.kind=kmeans")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "tokenizer", *TOKENIZER, "epochs=12")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A tokenizer of k-means."""
    return run_in(tmp_path_factory.mktemp("runs") / "clusters", *CLUSTERS, "epochs=2")


def evaluations(run: RunFolder) -> list[dict[str, Any]]:
    return [record for record in run.read_metrics() if record["kind"] == "eval"]


def losses(run: RunFolder) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.read_metrics() if record["kind"] == "train"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All that was saved, bit by bit."""
    return read_tensors(folder / "model" / "model.safetensors", label="model")[0]


def test_a_tokenizer_learns_to_give_images_back_with_codes_in_use(
    tokenizer: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_, last = evaluations(tokenizer)
    assert last["reconstruction"] < 0.9 * first["reconstruction"]
    assert last["share_of_codes"] > 50.0
    assert 1.0 < last["perplexity"] <= 16.0
    assert (tokenizer.path / "tokens.png").stat().st_size > 0
    trained = vitrail.load_trained(tokenizer.path)
    assert isinstance(trained.model, Tokenizer)
    assert (trained.task, trained.model.config.grid) == ("tokenizer", (4, 4))
    assert main(["evaluate", str(tokenizer.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reconstruction"] == pytest.approx(last["reconstruction"], rel=1e-4)


def test_verbs_say_what_a_tokenizer_is_for(
    tokenizer: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(tokenizer.path), str(tokenizer.path / "tokens.png")]) == 2
    assert (
        "is a tokenizer, which gives codes of patches and names no classes: learn from them" in capsys.readouterr().err
    )
    assert main(["inspect", str(tokenizer.path), f"out={tmp_path / 'page'}", "images=4"]) == 0
    said = capsys.readouterr().out
    for title in ("What residual branches add", "Sparsity of the matrices"):
        assert f"{title}: not available, tokenizer has no residual layers" in said
    page = write_report(tokenizer.path).read_text(encoding="utf-8")
    for text in ("vitrail pretrain", "Codes in use on val, %", "Share of codes in use in the last training steps"):
        assert text in page
    words = ("masked.target=features", f"masked.teacher={tokenizer.path}")
    with pytest.raises(ValueError, match=r"is a tokenizer, whose codes are no features: give it as masked.tokenizer="):
        task_of(tiny_recipe(*MASKED, *words)).open()


def test_dead_codes_are_put_on_patches_of_the_step_whatever_its_parts() -> None:
    """Codes far from all patches come to life after the window, at the same patches for two micro-batches."""
    settings = TokenizerSettings(codes=6, kind="kmeans", window=2)
    found = []
    for parts in (1, 2):
        model = Tokenizer.made(TokenizerConfig(image_size=8, patch_size=4, num_codes=6, kind="kmeans")).train()
        assert isinstance(model, Tokenizer)
        with torch.no_grad():
            model.codebook.fill_(100.0)
            model.codebook[0] = 0.0
        objective = Quantisation(settings, seed=0, world=Alone())
        images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        for _ in range(3):
            for first in range(0, 8, 8 // parts):
                part = slice(first, first + 8 // parts)
                picked = torch.arange(8)[part] % 4
                batch = TokenizerBatch(images[part], picked, first, torch.arange(8)[part])
                objective.note(objective(model, batch).seen)
            objective.after_step(model)
        assert objective.use.share > 0.5
        vectors = model.vectors_of(images)[torch.arange(8), torch.arange(8) % 4]
        assert all(any(torch.equal(code, vector) for vector in vectors) for code in model.codebook[1:])
        found.append(model.codebook.detach())
        for _ in range(4):
            objective.after_step(model)  # as in a plan, whose steps leave nothing
    assert torch.equal(*found)


def test_k_means_begins_with_clusters_of_patches(clusters: RunFolder, tmp_path: Path) -> None:
    first, last = evaluations(clusters)
    assert last["share_of_codes"] > 80.0
    assert last["reconstruction"] <= first["reconstruction"] < 0.5  # of colours whose deviation is about 1
    teacher = vitrail.create_model("deit_tiny", image_size=32, dim=16, depth=1, num_heads=2, num_classes=0)
    vitrail.save_model(teacher, tmp_path / "teacher")
    of_features = run_in(tmp_path / "features", *CLUSTERS, f"tokenizer.teacher={tmp_path / 'teacher'}", "epochs=1")
    found = vitrail.load_trained(of_features.path).model
    assert isinstance(found, Tokenizer)
    assert found.codebook.shape == (16, 16)
    masked = run_in(tmp_path / "masked", *MASKED, f"masked.tokenizer={of_features.path}", "epochs=1")
    assert "token_accuracy" in evaluations(masked)[0]


@pytest.mark.parametrize("model", ["deit_tiny", "cait_xxs24", "resmlp_s12", "patchconvnet_s20"])
def test_every_family_learns_from_tokens_and_leaves_its_trunk(model: str, tokenizer: RunFolder, tmp_path: Path) -> None:
    heads = ", num_heads: 2" if model in ("deit_tiny", "cait_xxs24") else ""
    words = (f"model={model}", f"model.settings={{patch_size: 4, dim: 16, depth: 2{heads}}}", "epochs=4", "lr=1e-2")
    run = run_in(tmp_path / "run", *MASKED, *words, f"masked.tokenizer={tokenizer.path}", "run.save_minutes=100")
    first, *_, last = evaluations(run)
    assert last["masked_loss"] < first["masked_loss"]
    assert {"token_accuracy", "share_of_codes", "effective_rank", "feature_deviation"} <= last.keys()
    assert "knn_top1" not in last
    figures = vitrail.evaluate(run.path).figures
    for measure in ("masked_loss", "token_accuracy", "share_of_codes"):
        assert figures[measure] == pytest.approx(last[measure], rel=1e-3)
    trunk = vitrail.load_model(run.model)
    assert (trunk.name, trunk.config.num_classes) == (model, 0)
    next_run = run_in(tmp_path / "next", *words, "epochs=1", f"init={run.path}", "head_start=random")
    assert evaluations(next_run)


@pytest.mark.parametrize("model", ["cait_xxs24", "patchconvnet_s20", "deit_tiny"])
def test_a_class_stage_that_has_learnt_nothing_is_not_asked(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Probes, galleries and exports of a masked run read the mean of its patches; a class token took part."""
    heads = "" if model == "patchconvnet_s20" else ", num_heads: 2"
    settings = f"model.settings={{patch_size: 4, dim: 16, depth: 1{heads}}}"
    words = (f"model={model}", settings, "epochs=1", "evaluation.crop_ratio=1.0", "watch.pictures=null")
    run = run_in(tmp_path / "run", *PIXELS, *words)
    trained = vitrail.load_trained(run.path)
    images = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    features = trained.model.features(trained.normalize(images))
    summary, patches = features.summary.flatten(1), features.patches.mean(dim=(2, 3))
    is_asked = model == "deit_tiny"
    for found in (trained.embed(images), trained.model.outputs(trained.normalize(images))["embedding"]):
        torch.testing.assert_close(found, summary if is_asked else patches, rtol=1e-4, atol=1e-5)
    assert (summary - patches).abs().max() > 0.01
    assert main(["probe", str(run.path), "method=ridge"]) == 0
    assert ("has learnt nothing: means of patches are probed" in capsys.readouterr().err) is not is_asked
    assert main(["probe", str(run.path), "method=ridge", f"out={tmp_path / 'probe'}"]) == (0 if is_asked else 2)
    assert ("a probe of the mean of its patches is no classifier of it" in capsys.readouterr().err) is not is_asked
    exported = tmp_path / "exported"
    assert main(["export", str(run.path), "--to", "eager", f"out={exported}"]) == 0
    torch.testing.assert_close(
        vitrail.load_trained(exported).embed(images), trained.embed(images), rtol=1e-4, atol=1e-5
    )
    if not is_asked:
        own, other = (vitrail.evaluate(place).figures for place in (run.path, exported))
        assert other["effective_rank"] == pytest.approx(own["effective_rank"], rel=1e-3)
    gallery, spec = tmp_path / "gallery", "data=shapes:size=16,count=48,val=24"
    assert main(["gallery", "build", str(run.path), spec, f"out={gallery}"]) == 0
    kept = vitrail.Gallery(gallery, model=trained)
    assert kept.search(images[0], top=1)
    whole = vitrail.load_model(run.model)  # whose embedding is that of its class stage
    with contextlib.nullcontext() if is_asked else pytest.raises(ValueError, match="another model"):
        vitrail.Gallery(gallery, model=dataclasses.replace(trained, model=whole))


def test_the_run_leaves_pictures_measures_and_a_model_that_verbs_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_in(tmp_path / "run", *MAE, "epochs=2", "model=deit_tiny", "watch.probe_every=1", "regularisation.ema=0.5")
    assert json.loads(run.task_file.read_text())["task"] == "masked"
    assert "probe_top1" in evaluations(run)[-1]
    with Image.open(run.path / "masked.png") as sheet:
        assert sheet.size == (8 * 100 - 4, 3 * 100 - 4)  # eight images, masks and what is made of them
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "<h2>Masked images</h2>" in page
    assert "Loss at masked patches of val" in page
    assert main(["evaluate", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for measure in ("masked_loss", "effective_rank"):
        assert found[measure] == pytest.approx(evaluations(run)[-1][measure], rel=1e-4)
    assert list(found)[2] == "masked_loss"
    shutil.rmtree(run.checkpoints)
    assert main(["evaluate", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert f"is left out: it needs a checkpoint of the run, and {run.checkpoints} has none" in said
    assert "effective rank" in said


@pytest.mark.parametrize("case", ["tokens", "codes", "mae", "mae, micro-batches"])
def test_micro_batches_and_two_processes_give_the_losses_of_one(
    case: str, tokenizer: RunFolder, tmp_path: Path
) -> None:
    kind, _, parts = case.partition(", ")
    cases = {"tokens": (*MASKED, f"masked.tokenizer={tokenizer.path}"), "codes": TOKENIZER, "mae": MAE}
    words = (*cases[kind], "epochs=4", "evaluation.every=4", "watch.pictures=null")
    one = losses(run_in(tmp_path / "one", *words, "run.micro_batch=16"))
    if parts:
        run_in(tmp_path / "divided", *words, "run.micro_batch=8")
    else:
        run_two(tmp_path / "divided", *words)
    divided = losses(RunFolder(tmp_path / "divided"))
    common = sorted(one.keys() & divided.keys())  # a slow run writes down more of its steps
    assert {1, 12} <= set(common)
    assert [divided[step] for step in common] == pytest.approx([one[step] for step in common], rel=1e-5)


@pytest.mark.parametrize("case", ["tokens", "codes", "clusters", "tokens of clusters", "hog"])
def test_killed_and_resumed_it_ends_with_the_same_bits(
    case: str, tokenizer: RunFolder, clusters: RunFolder, tmp_path: Path
) -> None:
    words = {
        "tokens": (*MASKED, f"masked.tokenizer={tokenizer.path}", "regularisation.ema=0.9"),
        "codes": TOKENIZER,
        "clusters": CLUSTERS,
        "tokens of clusters": (*MASKED, f"masked.tokenizer={clusters.path}"),
        "hog": (*MASKED, "masked.target=hog"),
    }[case] + ("epochs=5", "run.save_minutes=0.0001")
    process = start(tmp_path / "killed", *words)
    wait_for_step(process, tmp_path / "killed", 7)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed" / "model").exists()
    finish(start(tmp_path / "killed", *words))
    whole = run_in(tmp_path / "whole", *words, "run.threads=1")
    one, other = weights(tmp_path / "killed"), weights(whole.path)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_tokenizer_than_before_is_refused(tokenizer: RunFolder, tmp_path: Path) -> None:
    recipe = tiny_recipe(*MASKED, f"masked.tokenizer={tokenizer.path}")
    task = task_of(recipe)
    assert isinstance(task, MaskedModelling)
    task.open()
    objective = task.make_objective(total_steps=1)
    state = objective.state_dict()
    objective.load_state_dict(state)
    with pytest.raises(ValueError, match="the tokenizer or teacher is not the one that the run began with"):
        objective.load_state_dict({**state, "targets": "another"})


def take_steps(count: int, *words: str) -> None:
    """Steps of a run's model on its first batches, as the loop takes them."""
    task = task_of(tiny_recipe(*words, "run.on_collapse=stop"))
    data = task.open()
    model = task.make_model(task.describe(data.describe())).train()
    task.attach(model)
    batches = list(task.make_loaders(num_parts=1, listing=None).train.epoch(0))
    objective, optimizer = task.make_objective(total_steps=count), torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(count):
        losses = objective(model, task.prepare(batches[step % len(batches)], StepContext(0, 0, step)))
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
        objective.note(losses.seen)
        objective.after_step(model)


def test_living_codebooks_are_left_alone(tokenizer: RunFolder) -> None:
    take_steps(250, *TOKENIZER, *SMALLER)
    take_steps(250, *MASKED, *SMALLER, f"masked.tokenizer={tokenizer.path}")


def test_a_dead_codebook_is_named(tokenizer: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.tasks.unlabelled.task._LEAST_GRACE", 0)  # what is dead at once is told sooner
    said = r"collapsed \(dead codes\).* since step \d+.*lower tokenizer.codes, or set tokenizer.revive=true"
    with pytest.raises(CollapseError, match=said):  # codes of one number: after normalising there are two
        take_steps(150, *TOKENIZER, *SMALLER, "tokenizer.codes=512", "tokenizer.code_dim=1", "tokenizer.revive=false")
    dead = vitrail.load_trained(tokenizer.path).model
    assert isinstance(dead, Tokenizer)
    with torch.no_grad():
        dead.codebook[1:] = dead.codebook[0]  # all patches get the first code
    vitrail.save_model(dead, tmp_path / "one_code")
    with pytest.raises(CollapseError, match=r"\(dead codes\).*train a tokenizer of fewer tokenizer.codes, or set"):
        take_steps(150, *MASKED, *SMALLER, f"masked.tokenizer={tmp_path / 'one_code'}")


def test_a_rate_that_makes_all_images_alike_is_named(tmp_path: Path) -> None:
    said = r"collapsed \(constant\): the features of all images are the same at epoch 220 .*; lower lr, or raise"
    with pytest.raises(CollapseError, match=said):
        run_in(tmp_path / "run", *PIXELS, *SMALLER, "lr=30", "steps=220", "evaluation.every=220")
    task = task_of(tiny_recipe(*PIXELS, *SMALLER, "run.on_collapse=warn"))
    assert isinstance(task, MaskedModelling)
    task.open()
    task.judge_features(0.0, dim=16, epoch=220.0)  # said, and gone on


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=timm/resnet18", "model.settings={}"), "timm/resnet18 keeps no map of patches from a stem to its end"),
        (("model=resmlp_s12", "masked.form=mae", "model.settings={patch_size: 4}"), "resmlp_s12 needs the whole grid"),
        (("masked.target=tokens",), "no tokenizer given: train one"),
        (("masked.target=features", "masked.teacher=nobody"), "nobody"),
        (("data.balanced=true",), "data.balanced draws classes equally often"),
    ],
)
def test_what_can_not_be_masked_is_one_line(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refusal:
        task_of(tiny_recipe(*PIXELS, "regularisation.drop_path=null", *words)).open()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model.name=deit_tiny",), "a tokenizer has a model of its own: leave model and init out"),
        (("tokenizer.patch_size=5",), "images of 16x16 can't be cut into patches of 5"),
    ],
)
def test_what_can_not_be_tokenized_is_one_line(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        task_of(tiny_recipe(*TOKENIZER, *words)).open()


def test_more_codes_than_patches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer.codes=1,000 is more than the 768 patches there are: lower it"):
        run_in(tmp_path / "run", *TOKENIZER, "tokenizer.kind=kmeans", "tokenizer.codes=1000")
