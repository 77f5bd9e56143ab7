"""Leaving out the samples that a `quarantine.csv` lists."""

import csv
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from vitrail.data.contract import Dataset, Source
from vitrail.data.stored import FileDataset, Subset, printable
from vitrail.storage import bare_cell


def leave_out(dataset: Dataset, listing: str | Path, *, source: Source | None = None) -> Dataset:
    """The data set without the samples whose place is in the column `path` of a CSV file.

    Paths may be absolute, or relative to the data folder or to the working folder. Those that match nothing are passed
    over. A listing that matches nothing at all is an error, since it seems to belong to other data: unless a file that
    it names has been deleted from this data since. Such a path lies below the data folder, leads to nothing, and, if it
    is relative, the folder that it names is still there. If the source is given, its other splits are looked through
    before the error.
    """
    kept = find_kept(dataset, listing, source=source)
    return dataset if kept is None else Subset(dataset, kept)


def find_kept(dataset: Dataset, listing: str | Path, *, source: Source | None = None) -> np.ndarray | None:
    """The indices of the samples that `leave_out` keeps; None where those are all."""
    listed = _read_listing(Path(listing))
    if not listed:
        return None
    place = _resolver()
    kept = _find_kept(dataset, listed, place)
    if len(kept) == len(dataset):
        others = [source.open(split) for split in source.splits if split != dataset.split] if source else []
        is_other = not any(len(_find_kept(other, listed, place)) < len(other) for other in others)
        if is_other and not any(_names_deleted(part, listed, place) for part in (dataset, *others)):
            raise ValueError(f"none of the {len(listed)} paths in {listing} is in {dataset.name}: is it of other data?")
        return None
    if len(kept) == 0:
        raise ValueError(f"{listing} leaves nothing of the split {dataset.split} of {dataset.name}")
    return kept


def _read_listing(listing: Path) -> list[str]:
    try:
        if listing.exists() and not listing.is_file():
            raise ValueError(f"{listing} is no file: is it a quarantine.csv?")
        with listing.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if "path" not in (reader.fieldnames or ()):
                raise ValueError(f"{listing} has no column 'path': is it a quarantine.csv?")
            return [bare_cell(row["path"]) for row in reader if row["path"]]
    except OSError as error:
        raise ValueError(f"cannot read {listing}: {error.strerror}") from None
    except csv.Error as error:
        raise ValueError(f"{listing} cannot be read as CSV: {error}") from None


def _resolver() -> Callable[[str], str]:
    """A function that gives a path the one form in which two are compared: absolute, its folder free of links.

    A file that is itself a link keeps its name. Folders are few, so each is resolved once.
    """
    resolve_folder = functools.cache(os.path.realpath)

    def resolve(path: str) -> str:
        folder, name = os.path.split(path)
        return printable(os.path.join(resolve_folder(folder), name))

    return resolve


def _root(dataset: Dataset) -> str | None:
    """The folder that the files of a data set lie in; None if it has none."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return str(dataset.root) if isinstance(dataset, FileDataset) else None


def _names_deleted(dataset: Dataset, listed: Iterable[str], place: Callable[[str], str]) -> bool:
    """Whether a listed path is that of a file that was deleted from the data folder."""
    root = _root(dataset)
    if root is None:
        return False
    below = os.path.join(os.path.realpath(root), "")
    for path in listed:
        whole = place(os.path.join(root, path))
        is_known = os.path.isabs(path) or os.path.isdir(os.path.dirname(whole))
        if is_known and whole.startswith(below) and not os.path.lexists(whole):
            return True
    return False


def _find_kept(dataset: Dataset, listed: Iterable[str], place: Callable[[str], str]) -> np.ndarray:
    """The indices of the samples that are not listed."""
    root = _root(dataset) or ""
    left_out = {place(path) for path in listed} | {place(os.path.join(root, path)) for path in listed}
    names = {os.path.basename(path) for path in left_out}  # spares resolving most places

    def is_kept(where: str) -> bool:
        return printable(os.path.basename(where)) not in names or place(where) not in left_out

    return np.array([index for index in range(len(dataset)) if is_kept(dataset.locate(index))], dtype=np.int64)
