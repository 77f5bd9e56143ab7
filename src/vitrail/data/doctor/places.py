"""Naming samples for people: their paths, labels and sizes."""

import os

from vitrail.data.contract import Dataset
from vitrail.data.doctor.examine import ExaminedSplit
from vitrail.data.doctor.findings import Place
from vitrail.data.stored import FileDataset, Subset


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
    """The sample's class by name, or its classes."""
    level = dataset.level()
    if level.is_multiple:
        return ", ".join(level.classes[number] for number in level.labels[index].nonzero()[0]) or "no label"
    number = int(level.labels[index])
    return level.classes[number] if number >= 0 else "no label"


def place_of(examined: ExaminedSplit, index: int) -> Place:
    """The sample with all that is shown of it."""
    record = examined.records[index]
    return Place(
        path=path_of(examined.dataset, index),
        split=examined.split,
        label=label_of(examined.dataset, index),
        index=index,
        size=f"{record['width']} x {record['height']}" if record["is_whole"] else "",
    )
