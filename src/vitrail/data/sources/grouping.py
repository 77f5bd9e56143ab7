"""Coarser labels from a file that says the coarse class of each class: `SPEC,coarse=FILE`."""

import copy
import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.sources.class_names import ordered
from vitrail.storage import read_json_object

LEVEL = "coarse"
_SUFFIX = re.compile(rf"[,:]{LEVEL}=([^,]*)$")
_HEADING = ["class", LEVEL]
_WNID = re.compile(r"n\d{8}")
_REMEDY = 'it holds {"class": "coarse class", ...}'


def split_grouping(spec: str) -> tuple[str, Path | None]:
    """The text that names the data, and the file of its coarse classes where `,coarse=FILE` stands behind it."""
    found = _SUFFIX.search(spec)
    if found is None or os.path.lexists(spec):
        return spec, None
    if not found[1]:
        raise ValueError(f"{spec!r} names no file: write {LEVEL}=FILE, a CSV file with a class and its coarse class")
    return spec[: found.start()], Path(found[1]).expanduser()


class GroupedSource(Source):
    """Another source with one more level of labels, `coarse`, behind its first one."""

    def __init__(self, source: Source, file: Path) -> None:
        self.name, self.splits, self.notes, self.aliases = source.name, source.splits, source.notes, source.aliases
        self._source, self._file = source, file
        self._grouping = read_grouping(file)

    def open(self, split: str) -> Dataset:
        """One of the splits, with the coarse class of every sample."""
        dataset = self._source.open(split)
        coarse = self._group(dataset.level())
        if LEVEL in dataset.levels:
            raise ValueError(f"{self.name} has labels {LEVEL!r} of its own: leave {LEVEL}={self._file} out")
        grouped = copy.copy(dataset)
        first, *others = dataset.levels.items()
        grouped.levels = dict([first, (LEVEL, coarse), *others])
        return grouped

    def _group(self, fine: Level) -> Level:
        names = _match(fine.classes, self._grouping, file=self._file, data=self.name)
        classes = ordered(names)
        coarse_of = np.array([classes.index(name) for name in names], dtype=np.int64)
        if not fine.is_multiple:
            return Level(classes, np.where(fine.labels < 0, fine.labels, coarse_of[fine.labels]))
        labels = np.zeros((len(fine.labels), len(classes)), dtype=bool)
        for label, coarse in enumerate(coarse_of):
            labels[:, coarse] |= fine.labels[:, label]
        return Level(classes, labels)


def read_grouping(file: Path) -> dict[str, str]:
    """Class -> coarse class: of a JSON object, or of the two columns of a CSV (or TSV) file."""
    if file.suffix.lower() == ".json":
        content = read_json_object(file, remedy=_REMEDY)
        for name, coarse in content.items():
            if not isinstance(coarse, (str, int)) or isinstance(coarse, bool):
                raise ValueError(f"{file}: the coarse class of {name!r} must be a text, not {coarse!r:.60}")
        return {name: str(coarse) for name, coarse in content.items()}
    grouping: dict[str, str] = {}
    for number, cells in _read_rows(file):
        if len(cells) != 2 or not all(cells):
            raise ValueError(
                f"{file}, line {number}: a line is two cells, a class and its coarse class, not {len(cells)}"
            )
        name, coarse = cells
        if grouping.setdefault(name, coarse) != coarse:
            raise ValueError(f"{file}, line {number}: this class was in another coarse class before")
    return grouping


def _read_rows(file: Path) -> Iterable[tuple[int, list[str]]]:
    """The lines of a table with their numbers, without its heading and empty lines."""
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        if file.exists() and not file.is_file():
            raise ValueError(f"cannot read the coarse classes in {file}: it is no file")
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except OSError as error:
        raise ValueError(f"cannot read the coarse classes in {file}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as CSV in UTF-8: {type(error).__name__}") from None
    return [(number, cells) for number, cells in rows if any(cells) and cells != _HEADING]


def _match(classes: Sequence[str], grouping: Mapping[str, str], *, file: Path, data: str) -> list[str]:
    """The coarse class of each class; the file must name each of them, and no others."""
    names = _names_of(classes)
    unknown = [name for name in grouping if name not in names]
    if unknown:
        listed = _some(unknown) if len(unknown) < len(grouping) else "none but classes"  # it may be any file at all
        raise ValueError(f"{file} names {listed}, which {data} does not have")
    found: dict[str, str] = {}
    for name, coarse in grouping.items():
        if len(names[name]) > 1:
            raise ValueError(f"{file}: {name!r} may be {' or '.join(names[name])}: write which")
        if found.setdefault(names[name][0], coarse) != coarse:
            raise ValueError(f"{file} has {names[name][0]!r} in {coarse!r} and in {found[names[name][0]]!r}")
    missing = [name for name in classes if name not in found]
    if missing:
        raise ValueError(f"{file} gives no coarse class for {_some(missing)} of {data}")
    return [found[name] for name in classes]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names):,} {'class' if len(names) == 1 else 'classes'} ({shown})"


def _names_of(classes: Sequence[str]) -> dict[str, list[str]]:
    """What a file may call each class: its name, and for the WordNet ids of ImageNet their words as well."""
    names = {name: [name] for name in classes}
    if not all(map(_WNID.fullmatch, classes)):
        return names
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-22k")
    known = {*info.label_names(), *ImageNetInfo().label_names()}
    for wnid in known.intersection(classes):
        words = info.label_name_to_description(wnid, detailed=False)
        for name in {words, words.partition(",")[0]} - set(classes):
            names.setdefault(name, []).append(wnid)
    return {name: sorted(meant) for name, meant in names.items()}
