"""Tar shards in the format of WebDataset, for sets that outgrow one disk; no further package is needed.

The files of a sample share their path up to the first dot of the base name: `0001.jpg` with `0001.cls` (a class number
or name) or `0001.json` (a dictionary with `label`, `cls` or `class`; its other texts and integers are further levels).
Other files, such as captions in `.txt`, are passed over. Every shard is indexed once and then read directly: a data set
has its exact length, samples can be taken in any order, and a process opens only the shards that it needs. They lie on
this disk or at addresses (s3://, gs://, https://), where nothing else about them is different.
"""

import functools
import itertools
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.data.contract import Dataset, Labels, Level, Note, Source
from vitrail.data.regular_files import check_file_size
from vitrail.data.remote.patience import changed
from vitrail.data.sources.class_names import note_classes, ordered
from vitrail.data.sources.remote_patterns import find_all_shards
from vitrail.data.sources.shard_index import LabelValue, ShardIndex
from vitrail.data.sources.shard_places import RemoteShard, Shard, ShardReader, folder_above, index_all, join_place
from vitrail.data.splits import complete
from vitrail.data.stored import OpenedSource, PackedStrings, printable
from vitrail.storage import parse_json

_MAX_OPEN_SHARDS = 128  # of one process
_CLASS_LISTS = ("classes.txt", "classes.json")


class ShardDataset(Dataset):
    """Samples in tar files. It may be pickled and forked: a file is opened by the process that reads it."""

    def __init__(
        self,
        *,
        name: str,
        split: str,
        shards: Sequence[Shard],
        groups: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        names: Sequence[str],
        levels: Mapping[str, Level],
        sums: np.ndarray | None = None,
    ) -> None:
        self.name, self.split, self.levels = name, split, levels
        self.shards = tuple(shards)
        self.groups: np.ndarray = groups  # a sampler that keeps them together reads faster
        self._offsets, self._sizes = offsets, sizes
        self._sums = sums  # a CRC-32 of each image, -1 where none is known
        self._names = PackedStrings(names)

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> bytes:
        """The image's file."""
        offset, size = int(self._offsets[index]), int(self._sizes[index])
        check_file_size(size)
        shard = self.shards[self.groups[index]]
        data = _open_shard(shard).read(size, offset)
        if len(data) < size:
            raise OSError(
                f"the shard ends within this member: {len(data)} of {size} bytes; it was changed or cut short"
            )
        # A disk is trusted, as with any file: there the sum would take longer than the reading.
        wanted = -1 if self._sums is None or not isinstance(shard, RemoteShard) else int(self._sums[index])
        if wanted >= 0 and zlib.crc32(data) != wanted:
            raise changed(shard.place)
        return data

    def expect(self, indices: Sequence[int]) -> None:
        """Have the members fetched, where their shards lie far away."""
        for index in indices:
            shard = self.shards[self.groups[index]]
            if isinstance(shard, RemoteShard):
                _open_shard(shard).expect(int(self._sizes[index]), int(self._offsets[index]))

    def locate(self, index: int) -> str:
        """The shard and the member."""
        return printable(f"{self.shards[self.groups[index]].place}!{self._names[index]}")


def open_shards(pattern: str, *, val_share: float = 0.1, seed: int = 0, labels: Labels = "required") -> Source:
    """The tar files of a pattern: `/data/train-{000..127}.tar`, `/data/{a,b}.tar`, `/data/*.tar` or `{split}-*.tar`.

    It may be one of addresses, `s3://bucket/train-{000..127}.tar`, or name the list `shards.json` that was written with
    the shards. Where labels are not required, shards in which no image has one are opened without levels.

    Without `{split}`, or without a val, a `val_share` of train is set aside, decided by `seed`. The classes are the
    labels that occur, in numerical order if they are integers; or the names in `classes.txt` (one a line) or
    `classes.json` (a list) beside the shards, or beside their folders where they lie in several: integers then count
    from 0 in that list. The index of each shard is kept beside it (`NAME.tar.index`) where the folder may be written.
    """
    found = find_all_shards(pattern)
    shards = [shard for inner in found.values() for shard in inner]
    indexes = index_all(shards)
    _open_shard.cache_clear()  # a shard may have been replaced since it was opened
    is_labelled = [value is not None for index in indexes for value in index.labels["label"]]
    has_labels = any(is_labelled)
    if not has_labels and (labels == "required" or not is_labelled):
        raise ValueError(f"{pattern}: no sample has both an image and a label, as NAME.cls or in NAME.json")
    if not has_labels:
        is_labelled = [True] * len(is_labelled)
    kept = np.flatnonzero(is_labelled)
    groups = np.repeat(np.arange(len(shards)), [len(index.names) for index in indexes])[kept]
    splits = np.array([split for split, inner in found.items() for _ in inner])[groups]
    offsets = np.array([offset for index in indexes for offset in index.offsets], dtype=np.int64)[kept]
    sizes = np.array([size for index in indexes for size in index.sizes], dtype=np.int64)[kept]
    names = list(itertools.compress((name for index in indexes for name in index.names), is_labelled))
    sums = np.array([value for index in indexes for value in index.sums or [-1] * len(index.names)], dtype=np.int64)[
        kept
    ]
    levels, notes = _levels(indexes, is_labelled, shards) if has_labels else ({}, [])
    main = levels.get("label")
    notes += [] if main is None else note_classes(main, splits)
    names_for_split = [f"{shards[group].name}/{name}" for group, name in zip(groups, names, strict=True)]
    splits, split_notes = complete(
        splits, names=names_for_split, labels=None if main is None else main.labels, share=val_share, seed=seed
    )
    parts: list[Dataset] = []
    for split in dict.fromkeys(splits.tolist()):
        rows = np.flatnonzero(splits == split)
        parts.append(
            ShardDataset(
                name=f"shards:{pattern}",
                split=split,
                shards=shards,
                groups=groups[rows],
                offsets=offsets[rows],
                sizes=sizes[rows],
                sums=sums[rows],
                names=[names[row] for row in rows],
                levels={name: Level(level.classes, level.labels[rows]) for name, level in levels.items()},
            )
        )
    return OpenedSource(parts, notes=[*_note_left_out(shards, indexes, has_labels=has_labels), *notes, *split_notes])


@functools.lru_cache(maxsize=_MAX_OPEN_SHARDS)
def _open_shard(shard: Shard) -> ShardReader:
    return shard.open()


def _levels(
    indexes: Sequence[ShardIndex], is_kept: Sequence[bool], shards: Sequence[Shard]
) -> tuple[dict[str, Level], list[Note]]:
    """The levels of all samples kept; a further key of the JSON is one if every sample has it and its values repeat."""
    given = _find_class_list(shards)
    levels: dict[str, Level] = {}
    notes: list[Note] = []
    for name in dict.fromkeys(["label", *(name for index in indexes for name in index.labels)]):
        columns = (index.labels.get(name, [None] * len(index.names)) for index in indexes)
        values = list(itertools.compress(itertools.chain.from_iterable(columns), is_kept))
        present = ordered(str(value) for value in values)
        if name == "label" and given is not None:
            levels[name] = _listed_level(values, present, *given)
            detail = (
                f"the classes are the {len(given[0])} that this file lists; labels that are numbers count from 0 in it"
            )
            notes.append(Note("class list", str(given[1]), detail, is_serious=False))
        elif name == "label" or (None not in values and 2 <= len(present) <= len(values) // 2):
            levels[name] = Level(present, _indices(values, present))
        if name == "label" and given is None and _has_gaps(present):
            detail = (
                f"{len(present)} numbers from {present[0]} to {present[-1]} occur, and are numbered anew from 0: "
                "if the numbers matter, list all classes in classes.txt beside the shards"
            )
            notes.append(Note("class numbers with gaps", shards[0].folder, detail, is_serious=False))
    return levels, notes


def _indices(values: Sequence[LabelValue], classes: Sequence[str]) -> np.ndarray:
    places = {name: place for place, name in enumerate(classes)}
    return np.array([places[str(value)] for value in values], dtype=np.int64)


def _has_gaps(present: Sequence[str]) -> bool:
    """Whether these are class numbers that do not count from 0, each by one."""
    return all(text.isdecimal() for text in present) and int(present[-1]) != len(present) - 1


def _listed_level(values: Sequence[LabelValue], present: Sequence[str], classes: tuple[str, ...], place: str) -> Level:
    """The labels as numbers or names of the classes that a file lists."""
    numbers = [str(number) for number in range(len(classes))]
    for known in (numbers, classes):
        if set(present) <= set(known):
            return Level(classes, _indices(values, known))
    strange = next(name for name in present if name not in classes)
    raise ValueError(f"the label {strange} of the shards is not one of the {len(classes)} classes in {place}")


def _find_class_list(shards: Sequence[Shard]) -> tuple[tuple[str, ...], str] | None:
    """The class list for the shards and the file it is in: beside them, or beside the folders they lie in.

    The second holds only where those are several folders side by side: above a single folder may lie anything.
    """
    folders = {shard.folder: shard for shard in shards}
    lists = [found for folder, shard in folders.items() if (found := _class_list_in(shard, folder)) is not None]
    above = {folder_above(folder) for folder in folders}
    if not lists and len(folders) > 1 and len(above) == 1:
        found = _class_list_in(shards[0], next(iter(above)))
        lists = [] if found is None else [found]
    for classes, place in lists[1:]:
        if classes != lists[0][0]:
            raise ValueError(f"{lists[0][1]} and {place} list different classes: keep one of them")
    return lists[0] if lists else None


def _class_list_in(shard: Shard, folder: str) -> tuple[tuple[str, ...], str] | None:
    for name in _CLASS_LISTS:
        text = shard.read_beside(folder, name)
        if text is not None:
            place = join_place(folder, name)
            return _read_class_list(text, place), place
    return None


def _read_class_list(text: str, place: str) -> tuple[str, ...]:
    if place.endswith(".json"):
        try:
            classes = parse_json(text)
        except ValueError as error:
            raise ValueError(f"{place} can't be read ({error}): write it anew as a list of class names") from None
    else:
        classes = list(filter(None, map(str.strip, text.splitlines())))
    if not isinstance(classes, list) or not classes or len(set(map(str, classes))) < len(classes):
        raise ValueError(f"{place} must be a list of different class names")
    return tuple(map(str, classes))


def _note_left_out(shards: Sequence[Shard], indexes: Sequence[ShardIndex], *, has_labels: bool) -> list[Note]:
    notes = []
    for path, index in zip(shards, indexes, strict=True):
        num_unlabelled = index.labels["label"].count(None)
        if index.num_without_image:
            detail = (
                f"{index.num_without_image} groups of files have no image and are left out: "
                "a name may have one dot, the one before its extension"
            )
            notes.append(Note("image missing", str(path), detail, is_serious=False))
        if num_unlabelled and has_labels:
            detail = f"{num_unlabelled} of {len(index.names)} images have no label and are left out"
            notes.append(Note("label missing", str(path), detail, is_serious=True))
    return notes
