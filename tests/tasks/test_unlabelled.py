"""What tasks without labels share, by a toy of one: data, measures, collapse, and what becomes of its run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import run_in, tiny_recipe
from together import run_worlds
from warm import start_ranks

import vitrail
from vitrail.cli import main
from vitrail.data.stored import Subset
from vitrail.evaluation.features import Embeddings
from vitrail.models.contract import Model
from vitrail.settings.own import allow_own
from vitrail.settings.text import write_yaml
from vitrail.tasks import find_task
from vitrail.tasks.site import Silence, Site
from vitrail.tasks.unlabelled.collapse import CollapseError
from vitrail.tasks.unlabelled.evaluator import FeatureEvaluator
from vitrail.tasks.unlabelled.feature_pictures import find_maps, thin_out
from vitrail.training.runs.report import write_report
from vitrail.training.runs.run_folder import RunFolder

TOY = (
    "task=toy_views:Views",
    "augmentation.repeats=1",
    "regularisation.ema=null",
    "model=deit_tiny",
    "model.settings={patch_size: 8, dim: 16, depth: 1, num_heads: 2}",
    "epochs=1",
)
TRUNK = (*TOY[3:5], "image_size=16", "run.threads=1", "train_only=attention")
SHAPES = "shapes:size=16,count=48,val=24"


@pytest.fixture(autouse=True)
def _trusting() -> None:
    allow_own("toy_views:Views")


@pytest.fixture(scope="module")
def labelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the toy on data with labels."""
    allow_own("toy_views:Views")
    folder = tmp_path_factory.mktemp("unlabelled") / "run"
    run_in(folder, *TOY, "epochs=2", "watch.probe_every=2")
    return folder


def evaluations(run: RunFolder) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "eval"]


def make_photos(folder: Path, count: int, *, size: int = 16) -> Path:
    """A flat folder of images of noise."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


class Listener(Silence):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def opened(data: Path | str, *words: str, is_run: bool = False) -> tuple[object, list[str]]:
    """The data of a recipe, as the task opens it, and what was said."""
    recipe, listener = tiny_recipe(*TOY, f"data={data}", *words), Listener()
    task = find_task(recipe.task)(recipe, Site(reporter=listener, folder=Path() if is_run else None))
    return task.open(), listener.said


# What it learns from.


def test_folders_of_any_kind_are_opened(tmp_path: Path) -> None:
    flat, said = opened(make_photos(tmp_path / "flat", 20))
    assert (flat.num_train, flat.num_val) == (18, 2)  # type: ignore[attr-defined]
    assert said == [
        "learning from 18 images of flat without labels, measured on 2 that are held out; "
        "there are no labels to measure with"
    ]
    make_photos(tmp_path / "albums" / "summer", 6)
    make_photos(tmp_path / "albums" / "winter" / "snow", 6)
    albums, said = opened(tmp_path / "albums", "data.val_share=0.3")
    assert (albums.num_train, albums.num_val) == (8, 4)  # type: ignore[attr-defined]
    assert said[0].endswith("; the labels, of 2 classes, are read by measures alone")
    make_photos(tmp_path / "albums", 4)  # images beside folders: those are no classes then
    mixed, said = opened(tmp_path / "albums", "data.val=none")
    assert (mixed.num_train, mixed.num_val) == (16, 0)  # type: ignore[attr-defined]
    assert said == ["learning from 16 images of albums without labels; data.val=none: nothing is measured"]


def test_masks_beside_images_are_told(tmp_path: Path) -> None:
    make_photos(tmp_path / "pairs" / "images", 6)
    make_photos(tmp_path / "pairs" / "masks", 6)
    _, said = opened(tmp_path / "pairs")
    assert said[1].endswith(f"give data={tmp_path / 'pairs' / 'images'} to leave them out")
    assert len(opened(tmp_path / "pairs" / "images")[1]) == 1


def test_one_image_each_is_no_class(tmp_path: Path) -> None:
    for name in "abcdef":
        make_photos(tmp_path / "each" / name, 1)
    data, _ = opened(tmp_path / "each")
    assert (data.num_train, data.num_val) == (5, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["", "class"])
def test_one_image_is_an_error_of_one_line(place: str, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos" / place, 1)
    with pytest.raises(ValueError, match=r"^photos has one image: learning without labels tells images apart") as told:
        opened(tmp_path / "photos")
    assert "\n" not in str(told.value)


def test_two_images_of_which_one_is_held_out_are_too_few(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 2)
    with pytest.raises(
        ValueError, match=r"^photos has one image to train on: .* or add data\.val=none to learn from all$"
    ):
        opened(photos)
    data, _ = opened(photos, "data.val=none")
    assert data.num_train == 2  # type: ignore[attr-defined]


def test_labels_that_a_later_stage_lacks_are_missed_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "two.yaml"
    stages = "stages=[{}, {task: classify, epochs: 1}]"
    recipe.write_text(write_yaml(tiny_recipe(*TOY, f"data={make_photos(tmp_path / 'photos', 20)}", stages)))
    assert main(["train", str(recipe), f"out={tmp_path / 'runs' / 'two'}"]) == 2
    assert "error: stages.1 (task=classify): found 20 images but no class folders in " in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_crops_larger_than_images_are_said_once(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 8)
    (photos / "broken.png").write_bytes(b"no image")
    _, said = opened(photos, "image_size=32", "data.val=none", is_run=True)
    assert said[1:] == [
        "crops of 32 px are larger than 8 of 8 images looked at (the middle one has 16 px): they are enlarged; "
        "a smaller image_size is faster and loses nothing"
    ]
    assert len(opened(photos, is_run=True)[1]) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("data.balanced=true",), "nothing is learnt from classes"),
        (("run.sharding=full",), "is not learnt with sharding=full"),
        (("init=pretrained", "head_start=probe"), "head_start=probe is for classifiers"),
    ],
)
def test_settings_of_classifiers_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        opened(SHAPES, *words)


def test_early_stopping_needs_a_quality(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"early_stop needs a measure of quality, and photos has no labels"):
        opened(make_photos(tmp_path / "photos", 8), "regularisation.early_stop=3")
    opened(SHAPES, "regularisation.early_stop=3")


# What it measures.


def test_a_run_with_labels_measures_them(labelled_run: Path) -> None:
    run = RunFolder(labelled_run)
    first, last = evaluations(run)
    assert {"knn_top1", "effective_rank", "feature_deviation"} <= first.keys()
    assert "probe_top1" not in first
    assert "probe_top1" in last
    task = json.loads(run.task_file.read_text())
    assert task == {"task": "toy_views:Views", "num_train": 48, "num_val": 24, "uses_labels": False}


def test_without_labels_the_newest_weights_count(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 24)
    (photos / "broken.png").write_bytes(b"no image")
    words = (*TOY, f"data={photos}", "batch_size=8", "epochs=3", "data.max_broken=0.5", "augmentation.repeats=1")
    run = run_in(tmp_path / "run", *words)
    lines = evaluations(run)
    assert len(lines) == 3
    assert all("knn_top1" not in line and line["effective_rank"] >= 1.0 for line in lines)
    newest = max(run.checkpoints.glob("step_*.pt"))
    assert torch.load(newest, weights_only=True)["best"]["epoch"] == 3.0
    page = write_report(run.path).read_text()
    assert "There is nothing to draw yet" not in page  # of what needs labels there is no chart
    assert "effective rank, last" in page
    assert "effective rank, best" not in page
    assert main(["inspect", str(run.path), f"out={tmp_path / 'inspected'}"]) == 0  # whose data has no labels


def test_labels_of_val_alone_are_enough(tmp_path: Path) -> None:
    """Half of val answers for the other half."""
    photos = make_photos(tmp_path / "photos", 16)
    val = "shapes:size=16,count=24,val=96"
    run = run_in(tmp_path / "run", *TOY, f"data={photos}", f"data.val={val}", "watch.pictures=null")
    assert {"knn_top1", "probe_top1"} <= evaluations(run)[0].keys()
    assert not (run.path / "watch").exists()


def test_a_measurement_looks_at_as_many_images_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    embed = FeatureEvaluator._embed

    def watched(evaluator: FeatureEvaluator, trunk: Model, data: Subset) -> Embeddings:
        sizes.append(len(data))
        return embed(evaluator, trunk, data)

    monkeypatch.setattr(FeatureEvaluator, "_embed", watched)
    run_in(tmp_path / "run", *TOY, "watch.train_images=30", "watch.val_images=10", "watch.knn=false")
    assert sizes == [30, 10]


def test_a_task_may_measure_patches(labelled_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_tokens = vitrail.evaluate(labelled_run).figures["effective_rank"]
    monkeypatch.setattr(find_task("toy_views:Views"), "reads_patches", True)
    assert vitrail.evaluate(labelled_run).figures["effective_rank"] != pytest.approx(of_tokens)


def test_two_processes_measure_as_one(labelled_run: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(write_yaml(tiny_recipe(*TOY, "epochs=2", "watch.probe_every=2", "run.threads=1")))
    ranks = start_ranks(["train", str(recipe), f"out={tmp_path / 'two'}", "devices=2", "--trust"], num_ranks=2)
    said = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "".join(said)
    for one, two in zip(evaluations(RunFolder(labelled_run)), evaluations(RunFolder(tmp_path / "two")), strict=True):
        for key in ("knn_top1", "effective_rank", "feature_deviation"):
            assert one[key] == pytest.approx(two[key], rel=1e-4)


# What it leaves.


def test_the_report_has_pictures(labelled_run: Path) -> None:
    names = sorted(path.name for path in (labelled_run / "watch").iterdir())
    assert names == ["images.jpg", "maps_0_000001.000.jpg", "maps_0_000002.000.jpg", "neighbours.jpg"]
    page = write_report(labelled_run).read_text()
    assert "Feature deviation in a batch" in page  # a signal of the steps
    assert "Share of codes" not in page  # one that the toy has not
    assert "<h2>Nearest neighbours</h2>" in page
    assert "<h2>Where it looks</h2>" in page
    (labelled_run / "watch" / "maps_0_000001.500.jpg").write_bytes(b"no picture")
    page = write_report(labelled_run).read_text()
    assert "<h2>Where it looks</h2>" not in page
    assert "Not readable" in page
    (labelled_run / "watch" / "maps_0_000001.500.jpg").unlink()


def test_models_without_tokens_have_maps_too(tmp_path: Path) -> None:
    settings = "model.settings={patch_size: 4, dim: 16, depth: 1}"
    run = run_in(tmp_path / "run", *TOY, "model=resmlp_s12", settings, "run.on_collapse=warn")
    assert len(find_maps(run.path / "watch")) == 1


def test_maps_are_thinned_out_evenly(tmp_path: Path) -> None:
    for epoch in range(1, 41):
        (tmp_path / f"maps_0_{epoch:010.3f}.jpg").touch()
        thin_out(tmp_path)
    epochs = [epoch for (_, epoch), _ in find_maps(tmp_path)]
    assert len(epochs) == 10
    assert (epochs[0], epochs[-1]) == (1.0, 40.0)
    assert max(np.diff(epochs)) <= 8


@pytest.mark.usefixtures("_short_plans")
def test_every_verb_takes_its_run(labelled_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, photos = str(labelled_run), make_photos(tmp_path / "photos", 3)
    model = vitrail.load_model(labelled_run / "model")
    assert (model.name, model.config.num_classes) == ("deit_tiny", 0)
    trained = vitrail.load_trained(run)
    assert (trained.task, trained.uses_labels, trained.classes) == ("toy_views:Views", False, None)
    last = evaluations(RunFolder(labelled_run))[-1]
    found = vitrail.evaluate(run).figures
    assert {key: found[key] for key in ("knn_top1", "probe_top1")} == {
        key: last[key] for key in ("knn_top1", "probe_top1")
    }
    for shared in run_worlds(2, lambda world: vitrail.evaluate(run, world=world)):
        assert shared.figures == pytest.approx(found, rel=1e-5)
    on_others = vitrail.evaluate(run, data=str(make_photos(tmp_path / "others", 12)))
    assert set(on_others.figures) == {"effective_rank", "feature_deviation"}
    for words in (
        ["probe", run, f"data={SHAPES}", "method=ridge"],
        ["inspect", run, f"out={tmp_path / 'inspected'}"],
        ["explain", run, str(photos), f"out={tmp_path / 'maps'}"],
        ["retrieve", run, f"data={SHAPES}"],
        ["gallery", "build", run, f"data={SHAPES}", f"out={tmp_path / 'gallery'}"],
        ["plan", "small", *TOY, f"data={photos}", "image_size=16", "run.threads=1"],
        ["train", "small", *TRUNK, f"init={run}", f"data={SHAPES}", "epochs=1", f"out={tmp_path / 'next'}"],
        ["pack", str(tmp_path / "next"), f"trunk={run}", f"out={tmp_path / 'pack'}"],
    ):
        assert main(words) == 0, capsys.readouterr().err
    said = (tmp_path / "next" / "log.txt").read_text()
    assert f"weights from {run}" in said.replace("/model", "")
    capsys.readouterr()
    assert main(["predict", run, str(photos)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "has no classifier" in error
    assert f"vitrail train init={run}" in error


def test_pretrain_takes_recipes_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "small", f"data={SHAPES}", f"out={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err == (
        "vitrail: error: the recipe small learns from labels: start it with vitrail train\n"
    )


def test_an_unfinished_run_gives_the_trunk_that_it_would_save(labelled_run: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    for name in ("recipe.yaml", "task.json", "checkpoints"):
        (unfinished / name).symlink_to(labelled_run / name)
    expected = vitrail.load_trained(labelled_run).model.state_dict()
    for name, value in vitrail.load_trained(unfinished).model.state_dict().items():
        assert torch.equal(value, expected[name])


def test_another_task_begins_with_the_trunk_that_would_be_saved(tmp_path: Path) -> None:
    """A stage of classification after one without labels, as the two commands one after the other."""
    stages = 'stages=[{}, {task: classify, epochs: 1, "optimizer.lr": 1e-30}]'
    run = run_in(tmp_path / "both", *TOY, stages)
    both = vitrail.load_model(run.model)
    assert both.config.num_classes == 24
    state = both.state_dict()
    for name, value in vitrail.load_model(run_in(tmp_path / "alone", *TOY).model).state_dict().items():
        torch.testing.assert_close(state[name], value)


# When it collapses.


def test_a_run_that_collapses_stops_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Views are to be alike, and nothing keeps images apart: all get one answer."""
    words = (*TOY, "views.repulsion=0", "lr=1e-2", "schedule.warmup_epochs=0", "epochs=25", "evaluation.every=25")
    with pytest.raises(CollapseError) as told:
        run_in(tmp_path / "stopped", *words)
    assert str(told.value).startswith(
        "the run has collapsed (constant): the features of all images are the same since step "
    )
    assert str(told.value).endswith("; raise views.repulsion, or lower lr; run.on_collapse=warn would go on")
    run = run_in(tmp_path / "warned", *words, "run.on_collapse=warn")
    assert evaluations(run)[-1]["step"] == 75
