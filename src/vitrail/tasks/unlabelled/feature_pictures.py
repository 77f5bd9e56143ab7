"""Pictures of features as they are learnt: nearest neighbours of some images, and where the model looks in them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from vitrail.data.decode import BrokenImageError, open_image
from vitrail.data.stored import Subset
from vitrail.evaluation.features import Embeddings
from vitrail.evaluation.knn import find_neighbours
from vitrail.evaluation.predict import autocast
from vitrail.evaluation.ranked_lists import RankedList, draw_ranked_lists
from vitrail.explain.canvas import Rectangle, overlay
from vitrail.explain.maps import attention_maps, kinds_of
from vitrail.models.contract import Model
from vitrail.storage import replacing

if TYPE_CHECKING:
    from vitrail.tasks.unlabelled.task import UnlabelledTask

FOLDER = "watch"  # of a run, where the pictures are
NEIGHBOURS_FILE, IMAGES_FILE = "neighbours.jpg", "images.jpg"
_NUM_NEIGHBOURS = 5
_SIDE, _GAP = 96, 4  # pixels of a map, and between maps
_MOST_LOOKS = 10  # evaluations whose maps are kept
_QUALITY = 85  # of the JPEGs


class FeaturePictures:
    """What the last evaluation saw in a few images of val."""

    def __init__(self, task: "UnlabelledTask[Any]", train: Subset, val: Subset) -> None:
        self.task, self.train, self.val = task, train, val
        self._count = task.recipe.watch.pictures or 0
        self._found: tuple[list[int], Tensor] | None = None  # places in val, and those of their neighbours in train
        self._maps: Tensor | None = None  # [images, height, width]
        self._shown: list[Image.Image] = []
        self._epoch = 0.0

    def take(self, trunk: Model, train: Embeddings, val: Embeddings, *, epoch: float) -> None:
        """Look for neighbours of some images by their features, and where the model looks in these images."""
        self._epoch = epoch
        spread = torch.linspace(0, len(val.indices) - 1, min(self._count, len(val.indices))).round().long()
        queries, base = (functional.normalize(rows.vectors, dim=1) for rows in (val, train))
        _, places = find_neighbours(queries[spread], base, count=min(_NUM_NEIGHBOURS, len(base)))
        self._found = val.indices[spread].tolist(), train.indices[places]
        pixels = [self._read(self.val, place) for place in self._found[0]]
        known = [picture for picture in pixels if picture is not None]
        self._maps = self._look(trunk, torch.stack(known)) if known else None
        self._shown = [_as_image(picture) for picture in known]

    def write(self, folder: Path) -> None:
        """Leave the pictures in the folder of a run: the last neighbours, and maps of some evaluations on the way."""
        if self._found is None:
            return
        place = folder / FOLDER
        place.mkdir(exist_ok=True)
        _save(self._draw_neighbours(*self._found), place / NEIGHBOURS_FILE)
        if self._maps is not None:
            _save(_stack(self._shown), place / IMAGES_FILE)
            name = f"maps_{self.task.site.stage}_{self._epoch:010.3f}.jpg"
            shown = [_overlay(image, values) for image, values in zip(self._shown, self._maps, strict=True)]
            _save(_stack(shown), place / name)
            thin_out(place)

    def _draw_neighbours(self, queries: list[int], neighbours: Tensor) -> Image.Image:
        """A row an image: itself, and the training images whose features are nearest."""
        data = self.task.data
        labels = (data.val_labels, data.train_labels)
        is_judged = all(level is not None and not level.is_multiple for level in labels)
        rows = []
        for query, found in zip(queries, neighbours.tolist(), strict=True):
            picture = self._read(self.val, query)
            if picture is None:
                continue
            own = _class_of(self.val, data.level, query) if is_judged else ""
            caption = own or Path(self.val.locate(query)).name
            others = [
                (
                    None if (other := self._read(self.train, place)) is None else _as_image(other),
                    0 if is_judged and own and _class_of(self.train, data.level, place) == own else None,
                )
                for place in found
            ]
            rows.append(RankedList(_as_image(picture), caption, others))
        return draw_ranked_lists(rows, levels=("class",) if is_judged else ())

    def _read(self, data: Subset, place: int) -> Tensor | None:
        """The pixels of an image as evaluation sees them; None where it can't be read any more."""
        try:
            return self.task.evaluation_view(open_image(data.read(place)))
        except (BrokenImageError, OSError):
            return None

    def _look(self, trunk: Model, pixels: Tensor) -> Tensor:
        """How strongly special tokens look at each patch, [images, rows, columns].

        Of a model without such tokens, how much each patch is like the whole image.
        """
        site = self.task.site
        images = self.task.normalize(pixels.to(site.device))
        was_training = trunk.training
        trunk.eval()
        try:
            with torch.no_grad(), autocast(site.device, site.dtype):
                if "attention" in kinds_of(trunk):
                    return attention_maps(trunk, images, kind="attention").overview()[:, 0].float().cpu()
                found = trunk.features(images)
        finally:
            trunk.train(was_training)
        patches, summary = found.patches.float(), found.summary.float()[:, 0]
        if patches.shape[1] != summary.shape[1]:
            summary = patches.mean(dim=(2, 3))
        return functional.cosine_similarity(patches, summary[:, :, None, None], dim=1).cpu()


def _save(picture: Image.Image, path: Path) -> None:
    with replacing(path) as temporary:
        picture.save(temporary, "jpeg", quality=_QUALITY)


def thin_out(folder: Path) -> None:
    """Leave maps of a few evaluations, evenly from the first to the last."""
    files = find_maps(folder)
    while len(files) > _MOST_LOOKS:
        epochs = [order for order, _ in files]
        # Of those between the first and the last, the one whose neighbours are the closest together tells the least.
        gaps = [(*_span(epochs[place - 1], epochs[place + 1]), place) for place in range(1, len(files) - 1)]
        _, _, place = min(gaps)
        files.pop(place)[1].unlink()


def _span(before: tuple[int, float], after: tuple[int, float]) -> tuple[int, float]:
    return after[0] - before[0], after[1] - before[1]


def find_maps(folder: Path) -> list[tuple[tuple[int, float], Path]]:
    """Pictures of maps in a folder with their stage and epoch, in this order."""
    found = []
    for path in folder.glob("maps_*.jpg"):
        match = re.fullmatch(r"maps_(\d+)_([\d.]+)\.jpg", path.name)
        if match:
            found.append(((int(match[1]), float(match[2])), path))
    return sorted(found)


def _class_of(data: Subset, level: str | None, place: int) -> str:
    labels = data.level(level)
    number = int(labels.labels[place])
    return labels.classes[number] if number >= 0 else ""


def _as_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _overlay(image: Image.Image, values: Tensor) -> Image.Image:
    small = image.resize((_SIDE, max(1, round(_SIDE * image.height / image.width))), Image.Resampling.BICUBIC)
    return overlay(small, values, Rectangle(0, 0, small.height, small.width))


def _stack(pictures: list[Image.Image]) -> Image.Image:
    """Pictures below each other, all of one width."""
    sized = [
        picture.resize((_SIDE, max(1, round(_SIDE * picture.height / picture.width))), Image.Resampling.BICUBIC)
        for picture in pictures
    ]
    sheet = Image.new("RGB", (_SIDE, sum(picture.height + _GAP for picture in sized) - _GAP), "#ffffff")
    top = 0
    for picture in sized:
        sheet.paste(picture, (0, top))
        top += picture.height + _GAP
    return sheet
