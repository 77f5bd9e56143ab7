"""Sources of images with masks or objects: their splits, their classes, and parts of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, cast

import numpy as np

from vitrail.data.contract import Dataset, Faults, Note
from vitrail.data.dense.contract import (
    MAX_CLASSES,
    Colour,
    DetectionSet,
    SegmentationSet,
    WindowedObjects,
)
from vitrail.data.dense.faults import FaultList
from vitrail.data.dense.palette import make_colours
from vitrail.data.splits import complete
from vitrail.data.stored import FileDataset, OpenedSource, Subset

SomeSet = TypeVar("SomeSet", SegmentationSet, DetectionSet)


@dataclass(frozen=True)
class DenseOpening:
    """How a source is to be opened."""

    val_share: float = 0.1  # of train, where there is no val; 0: none is made
    seed: int = 0  # of the automatic split
    faults: Faults = "refused"  # whether faults of annotations are an error

    def make_faults(self) -> FaultList:
        """What takes the faults of one source."""
        return FaultList(self.faults)


class MaskSubset(Subset, SegmentationSet):
    """Some samples of another data set with masks, in the order given."""

    dataset: SegmentationSet

    def read_mask(self, index: int) -> np.ndarray:
        """The mask of the other data set."""
        return self.dataset.read_mask(int(self.indices[index]))


class ObjectSubset(Subset, DetectionSet):
    """Some samples of another data set with objects, in the order given."""

    dataset: DetectionSet

    def read_windows(self, index: int, size: tuple[int, int]) -> WindowedObjects:
        """The objects of the other data set."""
        return self.dataset.read_windows(int(self.indices[index]), size)

    def image_id(self, index: int) -> int:
        """The number that the other data set has for the image."""
        return self.dataset.image_id(int(self.indices[index]))

    def size(self, index: int) -> tuple[int, int] | None:
        """The size that the other data set says."""
        return self.dataset.size(int(self.indices[index]))


class DenseSource(OpenedSource, Generic[SomeSet]):
    """Images with masks or objects in one place, with all splits and one list of classes."""

    kind: ClassVar[type[Dataset]]  # of its data sets
    subset: ClassVar[type[Subset]]  # what holds some samples of one

    def __init__(self, datasets: Sequence[SomeSet], *, classes: Sequence[str], notes: Sequence[Note] = ()) -> None:
        assert all(isinstance(dataset, self.kind) for dataset in datasets)
        super().__init__(datasets, notes=notes)
        self.classes = tuple(classes)
        if not classes:
            raise ValueError(f"{self.name} has no classes")
        twice = next((label for place, label in enumerate(self.classes) if label in self.classes[:place]), None)
        if twice is not None:
            raise ValueError(f"{self.name} has two classes of the name {twice!r}")

    def open(self, split: str) -> SomeSet:
        """One of the splits."""
        return cast(SomeSet, super().open(split))

    @classmethod
    def pick(cls, dataset: SomeSet, indices: np.ndarray, *, split: str | None = None) -> SomeSet:
        """Some samples of a data set, as a split of that name or of the same."""
        part = cls.subset(dataset, indices)
        part.split = split or dataset.split
        return cast(SomeSet, part)

    @classmethod
    def complete(cls, datasets: Sequence[SomeSet], opening: DenseOpening) -> tuple[list[SomeSet], list[Note]]:
        """The splits, with a val taken from train's files where there is none, and the note that says so."""
        train = next((dataset for dataset in datasets if dataset.split == "train"), None)
        if any(dataset.split == "val" for dataset in datasets) or not train or opening.val_share == 0:
            return list(datasets), []
        names = cast(FileDataset, train).paths
        splits, notes = complete(None, names=names, labels=None, share=opening.val_share, seed=opening.seed)
        parts = []
        for split in ("train", "val"):
            indices = np.flatnonzero(splits == split)
            if len(indices):
                parts.append(cls.pick(train, indices, split=split))
        parts.extend(dataset for dataset in datasets if dataset.split != "train")
        return parts, notes


class SegmentationSource(DenseSource[SegmentationSet]):
    """Images with masks in one place, with all splits."""

    kind, subset = SegmentationSet, MaskSubset

    def __init__(
        self,
        datasets: Sequence[SegmentationSet],
        *,
        classes: Sequence[str],
        colours: Sequence[Colour] | None = None,
        notes: Sequence[Note] = (),
    ) -> None:
        super().__init__(datasets, classes=classes, notes=notes)
        if len(classes) > MAX_CLASSES:
            raise ValueError(f"{self.name} has {len(classes)} classes: a mask tells at most {MAX_CLASSES} apart")
        self.colours = tuple(colours) if colours is not None else make_colours(len(classes))


class DetectionSource(DenseSource[DetectionSet]):
    """Images with objects in one place, with all splits."""

    kind, subset = DetectionSet, ObjectSubset

    def __init__(
        self,
        datasets: Sequence[DetectionSet],
        *,
        classes: Sequence[str],
        has_masks: bool,
        category_ids: Sequence[int] | None = None,
        notes: Sequence[Note] = (),
    ) -> None:
        super().__init__(datasets, classes=classes, notes=notes)
        self.has_masks = has_masks
        self.category_ids = tuple(range(1, len(classes) + 1)) if category_ids is None else tuple(category_ids)
