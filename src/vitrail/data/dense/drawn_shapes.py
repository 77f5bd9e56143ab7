"""The data set `shapes` with masks and boxes: several shapes in a picture, drawn from a seed, at any size."""

import numpy as np

from vitrail.data.dense.contract import Colour, DetectionSet, MaskWindow, SegmentationSet, WindowedObjects
from vitrail.data.dense.dense_sources import DetectionSource, SegmentationSource
from vitrail.data.dense.palette import make_colours
from vitrail.data.sources.shapes import SHAPES, ShapesDataset, ShapesSettings, parse_settings

_DEFAULTS = ShapesSettings(size=128, max_objects=5)
_BACKGROUND: Colour = (32, 32, 32)


class ShapesMasks(ShapesDataset, SegmentationSet):
    """Pictures of shapes in which every pixel belongs to the background or to a shape."""

    def read_mask(self, index: int) -> np.ndarray:
        """The background is the class 0, and each shape one of the others."""
        return self.annotation(index).mask


class ShapesObjects(ShapesDataset, DetectionSet):
    """Pictures of shapes, each with its box and its mask."""

    def read_windows(self, index: int, size: tuple[int, int]) -> WindowedObjects:
        """The shapes of a picture; none hides another."""
        boxes, labels, windows = [], [], []
        for top, left, inside, label in self.outlines(index):
            height, width = inside.shape
            boxes.append((left, top, left + width, top + height))
            labels.append(label)
            windows.append(MaskWindow(top, left, inside.view(np.uint8)))
        return WindowedObjects(
            boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
            labels=np.array(labels, dtype=np.int64),
            windows=tuple(windows),
            is_crowd=np.zeros(len(labels), dtype=bool),
            areas=np.array([window.values.sum() for window in windows], dtype=np.float32),
        )

    def image_id(self, index: int) -> int:
        """The picture's number, from 1."""
        return index + 1

    def size(self, index: int) -> tuple[int, int]:
        """All pictures are squares of one size."""
        return self.settings.size, self.settings.size


def open_shapes_masks(settings: str) -> SegmentationSource:
    """Pictures with masks of seven classes: the background and six shapes."""
    chosen = parse_settings(settings, otherwise=_DEFAULTS)
    counts = {"train": chosen.count, "val": chosen.val}
    sets = [ShapesMasks(split=split, count=count, settings=chosen) for split, count in counts.items()]
    for dataset in sets:
        dataset.levels = {}
    return SegmentationSource(sets, classes=("background", *SHAPES), colours=(_BACKGROUND, *make_colours(len(SHAPES))))


def open_shapes_objects(settings: str) -> DetectionSource:
    """Pictures with the boxes and masks of six shapes."""
    chosen = parse_settings(settings, otherwise=_DEFAULTS)
    counts = {"train": chosen.count, "val": chosen.val}
    sets = [ShapesObjects(split=split, count=count, settings=chosen) for split, count in counts.items()]
    for dataset in sets:
        dataset.levels = {}
    return DetectionSource(sets, classes=SHAPES, has_masks=True)
