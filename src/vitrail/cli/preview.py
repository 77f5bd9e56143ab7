"""Show what a recipe's augmentation makes of the data: crops, training views, single operations and mixed batches."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.settings.image_recipe import ImageRecipe

SUMMARY = "show what a recipe's augmentation makes of the data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail preview` takes."""
    parser.add_argument("recipe", help="a name of `vitrail recipes` or a YAML file")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="as for `vitrail train`: data=SPEC, out=FOLDER and any setting, such as augmentation.crop=simple seed=1",
    )
    parser.add_argument("--out", help="folder for the pictures and the page, in place of out=FOLDER")
    parser.add_argument("--images", type=_count, default=3, help="how many training images are shown (default: 3)")
    parser.add_argument("--views", type=_count, default=16, help="training views of each image (default: 16)")
    parser.add_argument("--stage", type=int, default=0, help="stage of the recipe, counted from 0 (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Draw, and say where the page is."""
    from vitrail.recipes import find_recipe
    from vitrail.settings.overriding import override
    from vitrail.settings.text import parse_assignments, stage_of

    changes = parse_assignments(arguments.settings)
    out = arguments.out or changes.pop("out", None)
    changes.pop("out", None)
    if not out:
        raise ValueError("no folder given for the pictures: add out=FOLDER, such as out=preview")
    recipe = override(find_recipe(arguments.recipe), changes)
    if not 0 <= arguments.stage < recipe.num_stages:
        raise ValueError(f"{recipe.name} has no stage {arguments.stage}: it has {recipe.num_stages}, counted from 0")

    from vitrail.pages.words import count
    from vitrail.settings.image_recipe import ImageRecipe
    from vitrail.settings.images import AugmentationSettings

    stage = stage_of(recipe, arguments.stage)
    if not isinstance(stage, ImageRecipe):
        raise ValueError(f"the task {stage.task} learns from no images that could be shown")
    if not isinstance(stage.augmentation, AugmentationSettings):
        raise ValueError(f"preview draws no masks and boxes (task {stage.task}): see the report of a run")
    files = _write(stage, Path(str(out)).expanduser(), arguments)
    print(f"{count(len(files) - 1, 'picture')} and a page: {files[-1]}")
    return 0


def _write(recipe: "ImageRecipe", folder: Path, arguments: argparse.Namespace) -> list[Path]:
    import torch

    from vitrail.data.augment import EvaluationView
    from vitrail.preview.preview_page import write_preview
    from vitrail.tasks import find_task
    from vitrail.tasks.images.image_task import VisualTask
    from vitrail.tasks.images.initial_weights import make_backbone
    from vitrail.tasks.images.training_batch import training_views
    from vitrail.tasks.site import Site

    train = recipe.data.open_splits(labels="optional").train
    views = training_views(find_task(recipe.task), recipe, train, stage=arguments.stage)
    task = find_task(recipe.task)(recipe, Site())
    with torch.device("meta"):  # only what it says about preprocessing is wanted
        model = task.make_plain_model() if isinstance(task, VisualTask) else make_backbone(recipe, num_classes=0)
    preprocessing = model.preprocessing
    evaluation_view = EvaluationView(
        image_size=recipe.evaluation.image_size or recipe.image_size,
        crop_ratio=preprocessing.crop_ratio,
        interpolation=preprocessing.interpolation,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_preview(
            folder,
            views,
            evaluation_view=evaluation_view,
            num_images=arguments.images,
            num_views=arguments.views,
        )
    except OSError as error:
        raise ValueError(f"cannot write the pictures to {folder}: {error.strerror}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number, 1 or more, not {text!r}")
    return int(text)
