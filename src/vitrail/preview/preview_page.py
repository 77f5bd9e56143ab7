"""The pictures of a preview and the page that shows them."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from vitrail.data.augment import EvaluationView
from vitrail.data.checks import as_pair
from vitrail.data.contract import Sample
from vitrail.data.decode import BrokenImageError
from vitrail.data.geometry import PADDING
from vitrail.pages.frame import Page, PageSection, render_page
from vitrail.pages.pictures import render_figure, render_image
from vitrail.pages.words import text
from vitrail.preview.preview_sheet import Strip, as_image, draw_boxes, draw_seen, draw_sheet
from vitrail.preview.training_views import CROPS, TrainingViews, shown_part

_NUM_BOXES = 24  # crops drawn on an image
_NUM_STEPS, _NUM_MIXED = 4, 8  # steps shown mixed, and images of each


def write_preview(
    folder: Path, views: TrainingViews, *, evaluation_view: EvaluationView, num_images: int, num_views: int
) -> list[Path]:
    """Write a picture for each of some training images, one of mixed batches, and `index.html`; returns all of them."""
    files: list[Path] = []
    for index in views.pick(num_images):
        try:
            sheet = draw_image(views, index, evaluation_view=evaluation_view, num_views=num_views)
        except (BrokenImageError, OSError):  # a run would replace it by another
            continue
        files.append(_save(sheet, folder / f"image_{len(files)}.png"))
    if not files:
        raise ValueError(f"none of the images looked at in {views.dataset.name} can be read: see `vitrail check`")
    if views.blend is not None:
        with contextlib.suppress(BrokenImageError):
            files.append(_save(draw_mixed(views), folder / "mixed.png"))
    return [*files, _write_page(folder, views, files)]


def draw_image(views: TrainingViews, index: int, *, evaluation_view: EvaluationView, num_views: int) -> Image.Image:
    """All about one training image: crops, views epoch by epoch, single operations."""
    opened = views.open(index)
    image = as_image(opened.pixels())
    own = views.recipe.augmentation.crop
    border = 0.01 + PADDING / min(as_pair(views.recipe.image_size))  # simple crops leave the image by so much
    panels: list[tuple[str, Image.Image]] = []
    for view in dict.fromkeys([0, len(views.crops_of_image) - 1]) if views.crops_of_image else ():
        boxes = views.crops_of_view(opened, index, view=view, count=_NUM_BOXES)
        panels.append((f"crop {view + 1} of {len(views.crops_of_image)}", draw_boxes(image, boxes, border=border)))
    for kind in dict.fromkeys([own, "resized", "simple"]) if not views.crops_of_image else ():
        boxes = views.crops(opened, index, kind=kind, count=_NUM_BOXES)
        if boxes and len(panels) < 2:
            place = "this recipe" if kind == own else "for comparison"
            panels.append((f"{CROPS[kind]} ({place})", draw_boxes(image, boxes, border=border)))
    seen = shown_part(evaluation_view.plan((opened.height, opened.width)))
    panels.append(("evaluation crop", draw_seen(image, seen, border=border)))
    plain = EvaluationView(views.recipe.image_size, crop_ratio=1.0)(opened)
    operations = list(views.single_operations(plain))
    strips = [
        Strip(
            "training views, epoch by epoch: the pixels that the run is trained on",
            [
                ([f"epoch {epoch}" if views.num_views == 1 else f"epoch {epoch}, view {number}"], as_image(pixels))
                for epoch in range(-(-num_views // views.num_views))
                for number, pixels in enumerate(views.views(Sample(epoch, index, 0)))
            ],
        ),
        Strip(
            "single operations, each alone on the centre crop",
            [([name], as_image(pixels)) for name, pixels in [("as it is", plain), *operations] if operations],
        ),
    ]
    label = views.name_class(index)
    place = views.dataset.locate(index).replace("\\", "/")
    title = label or place.rpartition("/")[2]
    return draw_sheet(title, f"{place}, {opened.width} x {opened.height}", panels, strips)


def draw_mixed(views: TrainingViews) -> Image.Image:
    """The first images of some steps' batches, mixed, with what is taught about them."""
    assert views.mixing is not None, "there is nothing mixed to show"
    strips = [
        Strip(
            f"step {step}",
            [
                ([f"{name} {share:.0%}" for name, share in mixed.weights], as_image(mixed.pixels))
                for mixed in views.mixed(step=step, count=_NUM_MIXED)
            ],
        )
        for step in range(_NUM_STEPS)
    ]
    subtitle = (
        f"mixup {views.mixing.mixup:g}, CutMix {views.mixing.cutmix:g}, label smoothing {views.smoothing:g}: "
        "the first images of the first batches, and their targets"
    )
    return draw_sheet("Mixed batches", subtitle, [], strips)


def _save(sheet: Image.Image, path: Path) -> Path:
    sheet.save(path, optimize=True)
    return path


def _write_page(folder: Path, views: TrainingViews, files: Sequence[Path]) -> Path:
    recipe = views.recipe
    page = Page(
        title=f"{recipe.name} on {views.dataset.name}",
        kicker="vitrail preview",
        lead=[
            views.describe(),
            f"{len(views.dataset):,} images are trained on; those shown are the first of the first epoch.",
        ],
        sections=list(map(_section, files)),
        has_own_pictures=False,
    )
    path = folder / "index.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path


def _section(file: Path) -> PageSection:
    address = quote(file.name)
    title = "Mixed batches" if file.stem == "mixed" else f"Image {file.stem.rpartition('_')[2]}"
    picture = f'<a href="{address}">{render_image(address)}</a>'
    return PageSection(title, render_figure(picture, text(file.name), is_wide=True))
