import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import tiny_recipe

from vitrail.cli import main
from vitrail.data.augment import EvaluationView
from vitrail.data.contract import Sample
from vitrail.data.draws import Draws, seed_of_stage
from vitrail.data.geometry import plan_centre_crop, plan_resized_crop, plan_simple_crop
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.data.single_operations import apply_singly
from vitrail.preview.preview_page import write_preview
from vitrail.preview.training_views import TrainingViews, shown_part
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.images import AugmentationSettings
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.classify.task import Classify
from vitrail.tasks.site import Site

SHAPES = "data=shapes:size=40,count=48,val=24"


def views_of(*words: str) -> TrainingViews:
    recipe = tiny_recipe(SHAPES, *words)
    assert isinstance(recipe, ClassifyRecipe)
    train = recipe.data.open_splits().train
    return TrainingViews(recipe, train, "label", recipe.seed, recipe.blend, recipe.objective.smoothing)


def test_views_and_mixed_images_are_those_of_the_run() -> None:
    views = views_of("augmentation.policy=three", "batch_size=12", "run.micro_batch=12")
    recipe = views.recipe
    task = Classify(recipe, Site(seed=recipe.seed))
    data = task.open()
    task.attach(task.make_model(task.describe(data.describe())))
    batch = next(iter(task.make_loaders(num_parts=1, listing=None).train.epoch(0)))
    first = int(batch.indices[0])
    assert views.pick(1) == [first]
    assert torch.equal(views.views(Sample(0, first, 0))[0], batch.images[0])
    assert task.blend is not None
    expected = task.blend(batch._replace(images=batch.images.float()), seed=recipe.seed, epoch=0, step=0)
    mixed = views.mixed(step=0, count=4)
    for number, one in enumerate(mixed):
        assert torch.equal(one.pixels, expected.images[number].round().clamp(0, 255).to(torch.uint8))
        name, share = one.weights[0]
        assert share == pytest.approx(expected.targets[number].max().item())
        assert name == data.labels.classes[int(expected.targets[number].argmax())]


def test_views_that_come_together_and_fixed_views_are_those_of_the_run() -> None:
    recipe = tiny_recipe(SHAPES)
    assert isinstance(recipe, ImageRecipe)
    train = recipe.data.open_splits().train
    for num_views, fixed_views in ((2, None), (1, 3)):
        views = TrainingViews(recipe, train, "label", 5, num_views=num_views, fixed_views=fixed_views)
        loader = ImageLoader(
            train,
            transform=views.augmentation,
            sampler=Sampler(len(train), batch_size=8, seed=5, num_repeats=recipe.augmentation.repeats),
            num_views=num_views,
            fixed_views=fixed_views,
        )
        batch = next(iter(loader.epoch(1)))
        expected = batch.images[0] if num_views > 1 else batch.images[:1]
        assert torch.equal(torch.stack(views.views(Sample(1, int(batch.indices[0]), 0))), expected)


def test_boxes_are_the_parts_that_the_crops_show() -> None:
    resized = plan_resized_crop((60, 90), Draws(0), image_size=(32, 32))
    box, source = shown_part(resized), resized.source
    assert (box.top, box.left, box.height, box.width) == (source.top, source.left, source.height, source.width)
    simple = shown_part(plan_simple_crop((64, 128), Draws(1), image_size=(32, 32)))
    assert (simple.height, simple.width) == (64.0, 64.0)
    assert -8.0 <= simple.top <= 8.0
    centre = shown_part(plan_centre_crop((64, 128), image_size=(32, 32), crop_ratio=0.5))
    assert (centre.top, centre.left, centre.height, centre.width) == (16.0, 48.0, 32.0, 32.0)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (AugmentationSettings(policy="three", colour_jitter=0.3), ["grey", "solarise", "blur", *["jitter 0.3"] * 3]),
        (AugmentationSettings(policy="rand", erasing=0.25), ["autocontrast", "translate y", "erasing"]),
        (AugmentationSettings(policy="auto"), ["posterise", "rotate"]),
        (AugmentationSettings(policy="trivial"), ["identity", "shear x"]),
        (AugmentationSettings(), []),
    ],
)
def test_operations_are_applied_one_by_one(settings: AugmentationSettings, names: list[str]) -> None:
    pixels = torch.randint(256, (3, 24, 24), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    outcomes = list(apply_singly(pixels, settings, seed=0))
    found = [name for name, _ in outcomes]
    assert set(names) <= set(found)
    assert bool(names) == bool(found)
    assert all(one.shape == pixels.shape and one.dtype == torch.uint8 for _, one in outcomes)


def test_pictures_and_a_page_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "preview"
    words = ["preview", "small", SHAPES, f"out={out}", "--images", "1", "--views", "3"]
    assert main([*words, "augmentation.policy=[grey, blur]", "blend.cutmix=1.0", "image_size=24"]) == 0
    assert f"2 pictures and a page: {out / 'index.html'}" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["image_0.png", "index.html", "mixed.png"]
    with Image.open(out / "image_0.png") as sheet:
        assert np.asarray(sheet).std() > 10
    page = (out / "index.html").read_text()
    assert set(re.findall(r'src="([^"]+)"', page)) == {"image_0.png", "mixed.png"}
    assert "policy grey, blur" in page


def test_images_without_labels_and_broken_ones_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    views = views_of("blend.mixup=0", "blend.cutmix=0")
    bare = views.dataset
    [first, second] = views.pick(2)
    read = bare.read
    bare.read = lambda index: b"no image" if index == first else read(index)  # type: ignore[method-assign]
    view = EvaluationView(16, crop_ratio=0.875)
    files = write_preview(
        tmp_path, TrainingViews(views.recipe, bare, None, 0), evaluation_view=view, num_images=2, num_views=1
    )
    assert [file.name for file in files] == ["image_0.png", "index.html"]
    assert views.name_class(second)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["small", SHAPES], "no folder given for the pictures: add out=FOLDER"),
        (["small", "out=x"], "no data given: add data=FOLDER"),
        (["small", SHAPES, "out=x", "--stage", "3"], "has no stage 3: it has 1, counted from 0"),
        (["small", SHAPES, "out=x", "--images", "0"], "a whole number, 1 or more, not '0'"),
        (["small", SHAPES, "out=x", "augmentation.crop=square"], "augmentation.crop cannot be 'square'"),
        (["small", SHAPES, "out=FILE/x"], "cannot write the pictures to"),
    ],
)
def test_bad_input_is_an_error_of_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["preview", *[word.replace("FILE", str(tmp_path / "file")) for word in words]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_another_model_leaves_out_the_settings_of_the_recipes_own(tmp_path: Path) -> None:
    assert (
        main(["preview", "small", SHAPES, "model=resmlp_s12", "image_size=32", f"out={tmp_path}", "--images", "1"]) == 0
    )


def test_a_later_stage_has_draws_of_its_own() -> None:
    assert seed_of_stage(7, 0) == 7
    assert seed_of_stage(7, 1) == Draws(7, 1, "stage").integer(2**31)
    assert isinstance(tiny_recipe(), ImageRecipe)
