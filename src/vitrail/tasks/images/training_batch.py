"""What a run's first batch looked like to its model, for the report: the same draws make the same pictures again."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.decode import BrokenImageError
from vitrail.data.draws import seed_of_stage
from vitrail.pages.frame import PageSection
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.words import text
from vitrail.preview.training_views import MixedImage, TrainingViews
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.storage import read_json_object
from vitrail.tasks.contract import RunReader, Task
from vitrail.tasks.images.labelled_data import balanced_weights
from vitrail.tasks.images.run_data import OpenedData
from vitrail.tasks.site import Site

_NUM_PICTURES = 14  # two rows of a wide page; pairs that are mixed stay together
_LARGEST_SIDE = 192  # pixels of a picture in the page
_SMALL_SIDE = 64  # below it pixels are shown as they are


def training_views(task: type[Task[Any]], recipe: ImageRecipe, train: Dataset, *, stage: int) -> TrainingViews:
    """What a stage of a recipe makes of its training images."""
    made = task(recipe, Site())
    level = recipe.data.level or next(iter(train.levels), None)
    return TrainingViews(
        recipe,
        train,
        level=level,
        seed=seed_of_stage(recipe.seed, stage),
        mixing=getattr(recipe, "blend", None),
        smoothing=getattr(getattr(recipe, "objective", None), "smoothing", 0.0),
        weights=balanced_weights(train.level(level)) if recipe.data.balanced else None,
        num_views=made.num_views,
        fixed_views=getattr(made, "fixed_views", None),
        crops_of_image=getattr(made, "crops_of_image", ()),
    )


def training_sections(task: type[Task[Any]], run: RunReader, opened: OpenedData) -> Iterator[PageSection]:
    """The first images of the first step of the stage that a run has come to; nothing where the data is not there."""
    recipe, data = run.stage_recipe, opened.data
    nothing: Mapping[str, Any] = {}
    description = run.read("task.json", _read_description, nothing)
    if data is None or not isinstance(recipe, ImageRecipe) or description.get("num_train") != data.num_train:
        return
    views = training_views(task, recipe, data.train, stage=run.stage)
    try:
        images = views.batch(step=0, count=_NUM_PICTURES)
    except (BrokenImageError, OSError) as error:  # the run took another image in its place
        body = f'<p class="more">{text(f"No pictures: an image of the batch cannot be read ({error}).")}</p>'
    else:
        # Labels that are not the data's own, such as clusters, have no names here.
        is_named = description.get("classes") == list(data.labels.classes)
        figures = "".join(_render(image, is_named=is_named) for image in images)
        told = (
            f"The first images of the first step, as the model got them but for the normalisation: {views.describe()}"
        )
        body = f'<p>{text(told)}</p><div class="pictures even">{figures}</div>'
    yield PageSection("What training saw", body, anchor="batch")


def _read_description(path: Path) -> Mapping[str, Any]:
    return read_json_object(path, remedy="restore it")


def _render(image: MixedImage, *, is_named: bool) -> str:
    """A picture above the classes that it is taught to be and their shares."""
    shown = ((name, share) for name, share in image.weights if name) if is_named else ()
    caption = "<br>".join(f'{text(name)} <span class="percent">{share:.0%}</span>' for name, share in shown)
    is_small = max(image.pixels.shape[1:]) < _SMALL_SIDE
    return render_figure(render_image(_encode(image.pixels, is_small=is_small), is_small=is_small), caption)


def _encode(pixels: Tensor, *, is_small: bool) -> str:
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    content, kind = io.BytesIO(), "png" if is_small else "jpeg"
    picture.save(content, kind, **({} if is_small else {"quality": 88}))
    return embed_image(content.getvalue(), kind=kind)
