"""The objects of all images of a split, in a few blocks of memory, which forked workers share; and the image files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.contract import DetectionSet, MaskWindow, WindowedObjects
from vitrail.data.dense.polygons import fill_polygons
from vitrail.data.dense.run_lengths import fill_runs
from vitrail.data.stored import FileDataset

OUTSIDE = "every box lies outside its image, or has no area"  # of a split in which nothing could be learnt


@dataclass(frozen=True, eq=False, slots=True)
class ObjectRow:
    """One object as an annotation says it."""

    box: tuple[float, float, float, float]  # left, top, right, bottom
    label: int
    rings: Sequence[np.ndarray] = ()  # polygons, float64 [corners, 2]
    runs: np.ndarray | None = None  # lengths of runs down the columns, uint32
    is_crowd: bool = False
    area: float | None = None  # None: that of the box


class PackedObjects:
    """Objects in arrays; boxes and outlines are kept as they were written, be they wrong.

    Where `is_relative`, all places are parts of the image's width and height.
    """

    def __init__(self, images: Sequence[Sequence[ObjectRow]], *, is_relative: bool = False) -> None:
        rows = [row for image in images for row in image]
        rings = [ring for row in rows for ring in row.rings]
        self.is_relative = is_relative
        self.starts = _starts(map(len, images))
        self.boxes = np.array([row.box for row in rows], dtype=np.float64).reshape(-1, 4)
        self.labels = np.array([row.label for row in rows], dtype=np.int64)
        self.is_crowd = np.array([row.is_crowd for row in rows], dtype=bool)
        self.areas = np.array([np.nan if row.area is None else row.area for row in rows], dtype=np.float32)
        self._ring_starts = _starts(len(row.rings) for row in rows)
        self._corner_starts = _starts(map(len, rings))
        self._corners = np.concatenate(rings) if rings else np.zeros((0, 2))
        runs = [np.zeros(0, np.uint32) if row.runs is None else row.runs for row in rows]
        self._run_starts = _starts(map(len, runs))
        self._runs = np.concatenate(runs) if runs else np.zeros(0, np.uint32)

    @property
    def has_outline(self) -> np.ndarray:
        """Which objects have polygons or runs: bool [objects]."""
        return (np.diff(self._ring_starts) > 0) | (np.diff(self._run_starts) > 0)

    def extents(self, numbers: np.ndarray) -> np.ndarray:
        """Left, top, right and bottom of the polygons of objects in a row: float64 [objects, 4].

        They are as they were written, and no numbers where an object has no polygon.
        """
        found = np.full((len(numbers), 4), np.nan)
        if not len(numbers):
            return found
        starts = self._corner_starts[self._ring_starts[numbers[0] : numbers[-1] + 2]]
        has_corners = np.diff(starts) > 0
        if has_corners.any():
            corners, first = self._corners[: starts[-1]], starts[:-1][has_corners]
            found[has_corners, :2] = np.minimum.reduceat(corners, first, axis=0)
            found[has_corners, 2:] = np.maximum.reduceat(corners, first, axis=0)
        return found

    def __len__(self) -> int:
        """The number of images."""
        return len(self.starts) - 1

    def numbers(self, index: int) -> np.ndarray:
        """The places of an image's objects."""
        return np.arange(self.starts[index], self.starts[index + 1])

    def scaled_boxes(self, numbers: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Boxes as they were written, in pixels of an image of that height and width: float64 [objects, 4]."""
        boxes = self.boxes[numbers]
        return boxes * np.tile(size[::-1], 2) if self.is_relative else boxes

    def is_inside(self, sizes: np.ndarray | None = None) -> np.ndarray:
        """Which boxes have an area inside their image: bool [objects].

        `sizes` are heights and widths [images, 2], which relative places need not; a size of 0 is unknown, and all
        that is said of such an image counts.
        """
        borders = np.ones((len(self), 2)) if sizes is None else np.asarray(sizes, dtype=np.float64)[:, ::-1]
        borders = np.repeat(borders, np.diff(self.starts), axis=0)
        boxes = np.clip(self.boxes, 0, np.tile(borders, 2))
        return (boxes[:, 2:] > boxes[:, :2]).all(axis=1) | (borders == 0).any(axis=1)

    def window(self, number: int, size: tuple[int, int]) -> MaskWindow:
        """The mask of an object in an image of that height and width."""
        first, last = self._run_starts[number], self._run_starts[number + 1]
        if last > first:
            return fill_runs(self._runs[first:last], size)
        edges = self._corner_starts[self._ring_starts[number] : self._ring_starts[number + 1] + 1]
        corners = self._corners[edges[0] : edges[-1]]
        if self.is_relative:
            corners = corners * size[::-1]
        return fill_polygons(np.split(corners, edges[1:-1] - edges[0]), size)

    def read(self, index: int, size: tuple[int, int], *, with_masks: bool) -> WindowedObjects:
        """The objects of an image: boxes end at its border, what has no area is left out, as are empty masks."""
        numbers = self.numbers(index)
        boxes = self.scaled_boxes(numbers, size)
        height, width = size
        boxes = np.clip(boxes, 0, (width, height, width, height)).astype(np.float32)
        is_kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        windows = None
        if with_masks:
            found = {place: self.window(number, size) for place, number in enumerate(numbers) if is_kept[place]}
            is_kept[[place for place, window in found.items() if not window.values.size]] = False
            windows = tuple(window for window in found.values() if window.values.size)
        boxes, numbers = boxes[is_kept], numbers[is_kept]
        areas = self.areas[numbers]
        box_areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        return WindowedObjects(
            boxes=boxes,
            labels=self.labels[numbers],
            windows=windows,
            is_crowd=self.is_crowd[numbers],
            areas=np.where(np.isnan(areas), box_areas, areas),
        )


def _starts(lengths: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


class ObjectFiles(FileDataset, DetectionSet):
    """Image files below one folder, with objects that annotations beside them say."""

    def __init__(
        self,
        *,
        name: str,
        split: str,
        root: Path,
        paths: Sequence[str],
        objects: PackedObjects,
        has_masks: bool,
        ids: Sequence[int] | None = None,
        sizes: np.ndarray | None = None,
    ) -> None:
        super().__init__(name=name, split=split, root=root, paths=paths, levels={})
        self.objects, self.has_masks = objects, has_masks
        self._ids = np.arange(1, len(paths) + 1) if ids is None else np.array(ids, dtype=np.int64)
        self._sizes = sizes  # int64 [images, 2]: height and width as the annotations say; 0 where they don't

    def read_windows(self, index: int, size: tuple[int, int]) -> WindowedObjects:
        """The objects of an image."""
        said = self.size(index)
        if said not in (None, size):
            raise BrokenImageError(f"is {size[1]} x {size[0]} pixels, but its annotation says {said[1]} x {said[0]}")
        return self.objects.read(index, size, with_masks=self.has_masks)

    def image_id(self, index: int) -> int:
        """The image's number in the annotations, or its place from 1 where they have none."""
        return int(self._ids[index])

    def size(self, index: int) -> tuple[int, int] | None:
        """The height and width that the annotations say."""
        if self._sizes is None or not self._sizes[index].all():
            return None
        return int(self._sizes[index, 0]), int(self._sizes[index, 1])
