"""The two plain kinds of data set: files on a disk, and pixels in memory."""

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.regular_files import read_regular_file
from vitrail.data.splits import in_order


def printable(text: str) -> str:
    """The text with whatever is not valid Unicode (a file name in another encoding) written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class PackedStrings(Sequence[str]):
    """A list of texts in two blocks of memory, which forked workers share: reading a Python list copies its pages."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._text = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._text[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogateescape")


class FileDataset(Dataset):
    """Image files below one folder, whose names may be in any encoding."""

    def __init__(self, *, name: str, split: str, root: Path, paths: Sequence[str], levels: Mapping[str, Level]) -> None:
        self.name, self.split, self.levels = name, split, levels
        self.root = root.absolute()  # so that a list of its files holds elsewhere too
        self.paths = PackedStrings(paths)  # relative to the root, or absolute

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        """The file's bytes."""
        return read_regular_file(os.path.join(self.root, self.paths[index]))

    def locate(self, index: int) -> str:
        """The file's path, fit for a log."""
        return printable(str(self.root / self.paths[index]))


class ArrayDataset(Dataset):
    """Images in memory, all of one size."""

    def __init__(self, *, name: str, split: str, images: np.ndarray, levels: Mapping[str, Level]) -> None:
        self.name, self.split, self.levels = name, split, levels
        self.images = images  # uint8 [samples, height, width] or [samples, height, width, 3]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> np.ndarray:
        """The image's pixels."""
        return self.images[index]

    def locate(self, index: int) -> str:
        """The image's number."""
        return f"{self.name}/{self.split}/{index}"


class Subset(Dataset):
    """Some samples of another data set, in the order given."""

    def __init__(self, dataset: Dataset, indices: np.ndarray) -> None:
        self.name, self.split = dataset.name, dataset.split
        self.levels = {
            name: Level(classes=level.classes, labels=level.labels[indices]) for name, level in dataset.levels.items()
        }
        self.groups = None if dataset.groups is None else dataset.groups[indices]
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> bytes | np.ndarray:
        """The sample as the other data set stores it."""
        return self.dataset.read(int(self.indices[index]))

    def expect(self, indices: Sequence[int]) -> None:
        """Tell the other data set."""
        self.dataset.expect([int(self.indices[index]) for index in indices])

    def locate(self, index: int) -> str:
        """Where the other data set has the sample."""
        return self.dataset.locate(int(self.indices[index]))


class Relabelled(Dataset):
    """The samples of another data set with one more level of labels, before the others."""

    def __init__(self, dataset: Dataset, *, name: str, level: Level) -> None:
        self.name, self.split, self.groups = dataset.name, dataset.split, dataset.groups
        self.levels = {name: level, **dataset.levels}
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> bytes | np.ndarray:
        """The sample as the other data set stores it."""
        return self.dataset.read(index)

    def expect(self, indices: Sequence[int]) -> None:
        """Tell the other data set."""
        self.dataset.expect(indices)

    def locate(self, index: int) -> str:
        """Where the other data set has the sample."""
        return self.dataset.locate(index)


def without_labels(dataset: Dataset) -> Dataset:
    """The same samples with no labels."""
    bare = copy.copy(dataset)
    bare.levels = {}
    return bare


class OpenedSource(Source):
    """A source whose splits are all at hand."""

    def __init__(self, datasets: Sequence[Dataset], *, notes: Sequence[Note] = ()) -> None:
        self._datasets = {dataset.split: dataset for dataset in datasets}
        self.name = datasets[0].name
        self.splits = tuple(in_order(self._datasets))
        self.notes = tuple(notes)

    def open(self, split: str) -> Dataset:
        """One of the splits, by any of its names."""
        return self._datasets[self.aliases.get(split, split)]


class UnlabelledSource(Source):
    """Another source with all its splits, whose labels are ignored."""

    def __init__(self, source: Source) -> None:
        self.name, self.splits, self.notes, self.aliases = source.name, source.splits, source.notes, source.aliases
        self._source = source

    def open(self, split: str) -> Dataset:
        """One of the splits, without labels."""
        return without_labels(self._source.open(split))
