"""Naming samples for people: their paths, labels and sizes."""

import os
from collections.abc import Sequence

from vitrail.data.contract import Dataset
from vitrail.data.doctor.examine import ExaminedSplit
from vitrail.data.doctor.findings import Place
from vitrail.data.stored import FileDataset, Subset, printable


def find_files(dataset: Dataset) -> FileDataset | None:
    """The files that a data set is made of, if it is."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset if isinstance(dataset, FileDataset) else None


def path_of(dataset: Dataset, index: int) -> str:
    """Where a sample is; files by their absolute path."""
    place = dataset.locate(index)
    return os.path.abspath(place) if find_files(dataset) else place


def label_of(dataset: Dataset, index: int) -> str:
    """The sample's class by name, or its classes; nothing where whole images have no labels."""
    if not dataset.levels:
        return ""
    level = dataset.level()
    if level.is_multiple:
        return ", ".join(level.classes[number] for number in level.labels[index].nonzero()[0]) or "no label"
    number = int(level.labels[index])
    return level.classes[number] if number >= 0 else "no label"


def place_of(examined: ExaminedSplit, index: int) -> Place:
    """A sample's place with all that is shown of it."""
    record = examined.records[index]
    return Place(
        path=path_of(examined.dataset, index),
        split=examined.split,
        label=label_of(examined.dataset, index),
        index=index,
        size=f"{record['width']} x {record['height']}" if record["is_whole"] else "",
    )


def listed_path(place: Place, splits: Sequence[ExaminedSplit]) -> str:
    """What `quarantine.csv` calls a sample: a file by its path below the data, which holds wherever that is moved to.

    A split whose files lie below another folder (as ImageNet's do) may have a file of the same path there, which is not
    meant: then the path is absolute.
    """
    assert place.index is not None
    dataset, index = next(split.dataset for split in splits if split.split == place.split), place.index
    while isinstance(dataset, Subset):
        index, dataset = int(dataset.indices[index]), dataset.dataset
    if not isinstance(dataset, FileDataset):
        return place.path
    path = dataset.paths[index]
    roots = {files.root for files in (find_files(split.dataset) for split in splits) if files is not None}
    is_unique = not any(os.path.lexists(root / path) for root in roots - {dataset.root})
    return printable(path) if is_unique else place.path
