"""Pictures with their objects: the short side resized, perhaps a part cut out first; boxes and masks move with them."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from vitrail.data.decode import OpenedImage
from vitrail.data.dense.contract import Objects, WindowedObjects
from vitrail.data.dense.distortion import PhotometricDistortion
from vitrail.data.dense.samples import MarkedImage
from vitrail.data.draws import Draws
from vitrail.data.geometry import Box, Crop
from vitrail.settings.dense import DetectAugmentationSettings

_MIN_SIDE = 1.0  # pixels of a box in the picture: smaller ones are dropped
_NUM_KEYS = 2**48


@dataclass(frozen=True)
class DetectionView:
    """A training picture: crop or none, short side from a list, flip, photometric distortion."""

    settings: DetectAugmentationSettings = field(default_factory=DetectAugmentationSettings)

    def __call__(self, image: OpenedImage, objects: WindowedObjects, draws: Draws) -> MarkedImage:
        """The picture and the objects that the draws make of an image."""
        size = image.height, image.width
        geometry, colour = Draws(draws.integer(_NUM_KEYS)), Draws(draws.integer(_NUM_KEYS))
        crop = self.plan(size, geometry)
        pixels = crop.apply(image)
        if self._distortion is not None:
            pixels = self._distortion(pixels, colour)
        return MarkedImage(pixels, move_objects(objects, crop), size)

    def plan(self, size: tuple[int, int], draws: Draws) -> Crop:
        """Where from an image of this height and width the picture is taken."""
        settings = self.settings
        short, is_flipped = draws.choice(settings.short_sides), draws.chance(settings.flip)
        source = self._plan_part(size, draws) if draws.chance(settings.crop) else Box(0, 0, *size)
        resized = fit((source.height, source.width), short_side=short, max_side=settings.max_side)
        return Crop(source, resized, Box(0, 0, *resized), interpolation="bilinear", is_flipped=is_flipped)

    def _plan_part(self, size: tuple[int, int], draws: Draws) -> Box:
        """A part of the image, whose sides are measured in the image resized: it is cut from the image itself."""
        whole = fit(size, short_side=draws.choice(self.settings.crop_short_sides), max_side=self.settings.max_side)
        low, high = self.settings.crop_sides
        edges = []
        for side, resized in zip(size, whole, strict=True):
            least, most = min(low, resized), min(high, resized)
            length = least + draws.integer(most - least + 1)
            start = draws.integer(resized - length + 1)
            first = min(round(start * side / resized), side - 1)
            edges.append((first, max(1, round((start + length) * side / resized) - first)))
        (top, height), (left, width) = edges
        return Box(top, left, height, width)

    @cached_property
    def _distortion(self) -> PhotometricDistortion | None:
        return PhotometricDistortion(self.settings.distortion) if self.settings.distortion else None


@dataclass(frozen=True)
class FittedView:
    """A picture to evaluate on: the whole image, its short side resized; nothing about it is random."""

    short_side: int = 800
    max_side: int = 1333

    def __call__(self, image: OpenedImage, objects: WindowedObjects, draws: Draws | None = None) -> MarkedImage:
        """The picture and its objects."""
        size = image.height, image.width
        resized = fit(size, short_side=self.short_side, max_side=self.max_side)
        crop = Crop(Box(0, 0, *size), resized, Box(0, 0, *resized), interpolation="bilinear", is_exact=True)
        return MarkedImage(crop.apply(image), move_objects(objects, crop), size)


def fit(size: tuple[int, int], *, short_side: int, max_side: int) -> tuple[int, int]:
    """The height and width of an image with that short side, or with that long side if it would be longer.

    Fractions are cut off, as torchvision does it; no side is less than a pixel.
    """
    short, long = min(size), max(size)
    new_short, new_long = short_side, int(short_side * long / short)
    if new_long > max_side:
        new_short, new_long = max(1, int(max_side * new_short / new_long)), max_side
    return (new_short, new_long) if size[0] <= size[1] else (new_long, new_short)


def move_objects(objects: WindowedObjects, crop: Crop) -> Objects:
    """The objects in pixels of the picture: boxes cut off at its border, those of which nothing is seen left out."""
    height, width = crop.window.height, crop.window.width
    scale = np.array([crop.resized[1] / crop.source.width, crop.resized[0] / crop.source.height] * 2)
    shift = np.array([crop.source.left, crop.source.top] * 2)
    moved = (objects.boxes.astype(np.float64) - shift) * scale - np.array([crop.window.left, crop.window.top] * 2)
    boxes = np.clip(moved, 0.0, (width, height, width, height))
    sides = boxes[:, 2:] - boxes[:, :2]
    share = sides.prod(axis=1) / np.maximum((moved[:, 2:] - moved[:, :2]).prod(axis=1), 1e-12)  # that is still seen
    if crop.is_flipped:
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    is_kept = (sides >= _MIN_SIDE).all(axis=1)
    masks = None
    if objects.windows is not None:
        masks = _move_masks(objects, crop, np.flatnonzero(is_kept))
        is_seen = masks.any(axis=(1, 2))
        is_kept[is_kept] = is_seen
        masks = masks if is_seen.all() else masks[is_seen]
    return Objects(
        boxes=boxes[is_kept].astype(np.float32),
        labels=objects.labels[is_kept],
        masks=masks,
        is_crowd=objects.is_crowd[is_kept],
        areas=(objects.areas * share * scale[0] * scale[1])[is_kept].astype(np.float32),
    )


def _move_masks(objects: WindowedObjects, crop: Crop, chosen: np.ndarray) -> np.ndarray:
    """The masks of some objects in the picture, each pixel from the nearest one of the image: uint8 [n, h, w]."""
    assert objects.windows is not None
    rows, columns = crop.find_nearest()
    masks = np.zeros((len(chosen), len(rows), len(columns)), dtype=np.uint8)
    for mask, number in zip(masks, chosen, strict=True):
        top, left, values = objects.windows[number]
        down = np.flatnonzero((rows >= top) & (rows < top + values.shape[0]))
        across = np.flatnonzero((columns >= left) & (columns < left + values.shape[1]))
        if len(down) and len(across):
            part = values[rows[down] - top].take(columns[across] - left, axis=1)
            mask[down[0] : down[-1] + 1, across[0] : across[-1] + 1] = part
    return masks
