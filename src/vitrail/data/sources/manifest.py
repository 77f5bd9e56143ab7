"""A manifest: a CSV or Parquet file that lists images and their labels."""

import difflib
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.data.contract import Dataset, Faults, Level, Note, Source
from vitrail.data.regular_files import check_file_size
from vitrail.data.remote.addresses import is_address
from vitrail.data.remote.remote_images import RemoteImages
from vitrail.data.sources.class_names import note_classes, ordered
from vitrail.data.sources.manifest_addresses import join_all, look_for_some_remote
from vitrail.data.sources.manifest_labels import (
    SEVERAL_NAMES,
    RowLabels,
    find_class_columns,
    is_several_name,
    join_rows,
    rarest_of_each,
    read_class_columns,
    read_label_column,
)
from vitrail.data.sources.official import first_line
from vitrail.data.sources.text_tables import Fault, TextTable, read_csv, read_parquet
from vitrail.data.splits import canonical, complete, in_order
from vitrail.data.stored import FileDataset, OpenedSource

if TYPE_CHECKING:
    import pyarrow

PATH_NAMES = (
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "image",
    "image_path",
    "img",
    "img_path",
)
LABEL_NAMES = ("label", "class", "class_name", "target", "category", "fine")
SPLIT_NAMES = ("split",)
# Names of columns that an error may repeat: a file that is no manifest must not be shown by the back door.
_PLAIN_NAME = re.compile(r"[^\W\d][\w .()-]{0,39}")
NUM_LOOKED_FOR = 20  # files, spread over the manifest, of which at least one must exist


def open_manifest(
    path: Path,
    *,
    name: str,
    val_share: float = 0.1,
    seed: int = 0,
    levels: Sequence[str] | None = None,
    needs_labels: bool = True,
    faults: Faults = "refused",
    base: str | None = None,
) -> Source:
    """The images that a CSV or Parquet file lists, in its order.

    Columns: `path` (below the manifest's folder, or absolute), `label` and, if there is one, `split`; usual other names
    for them are understood, and noted. Further labels are the columns that `levels` names; by default all others of
    text or integers whose values repeat (two or more, at most half as many as rows) and which have no empty cell.
    They are called like their columns; the first level is `label`. The classes of each are one list for all splits: by
    number if all are integers, else as strings. A Parquet file may hold the images itself, and state its classes; their
    order is then kept. Where no labels are needed, a file without the column `label` has no levels.

    An image may have several labels, or none: in a column `labels` with | or ; between them, in several rows, or in a
    column of 0 and 1 for each class (see `manifest_labels`). Rows that are faulty are an error that says how many there
    are, or with faults="noted" are left out, with a note for each.

    With `base`, the address of the folder that the manifest comes from, paths start there and none is of this disk.
    """
    try:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        table = read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or first_line(error)}") from None
    if not table.places and not table.faults:
        raise ValueError(f"{path} lists no images")
    columns = _choose_columns(path, table, levels, needs_labels=needs_labels)
    sound, found_faults = _find_faults(table, columns)
    if found_faults and (faults == "refused" or not len(sound)):
        raise ValueError(_describe_faults(path, found_faults))
    notes = [Note("faulty line", fault.place, fault.detail, is_serious=True) for fault in found_faults]
    table = table.chosen(sound.tolist()) if found_faults else table
    notes += _note_names(columns)
    rows = np.arange(len(table.places))  # of the table, that samples are made of
    found = _read_labels(table, columns)
    paths: list[str] = []
    is_remote = False  # whether the images are objects at addresses
    names = [str(row) for row in sound]  # what the automatic split goes by
    if columns.path is not None:
        paths = _with_slashes(table.columns[columns.path])
        is_remote = base is not None or is_address(paths[0])
        if is_remote:
            paths = join_all(paths, base=base, manifest=path)
        notes += look_for_some_remote(paths, faults) if is_remote else _look_for_some(path, paths, faults=faults)
        names = _below_shared_folder(paths)
        joined = None
        if found is not None:
            is_several = columns.label is not None and is_several_name(columns.label)
            joined = join_rows(found, names, is_several=is_several)
        if joined is not None:
            notes += _note_several_splits(names, table, columns.split)
            found, rows = joined
            names = [names[row] for row in rows]
        else:
            labels = [""] * len(names) if columns.label is None else table.columns[columns.label]
            notes += _note_repeated(names, table.places, labels=labels)
    coded: dict[str, Level] = {}
    if found is not None:
        coded = {"label": found.level()}
        for column in columns.levels:
            level = _code(table, column)
            coded[column] = Level(classes=level.classes, labels=level.labels[rows])
        notes += found.notes
    main = coded.get("label")
    splits = None
    if columns.split is not None:
        listed = table.columns[columns.split]
        splits = np.array([canonical(listed[row]) for row in rows], dtype=object)
    notes += [] if main is None else note_classes(main, splits)
    splits, split_notes = complete(
        splits, names=names, labels=None if main is None else rarest_of_each(main), share=val_share, seed=seed
    )
    datasets: list[Dataset] = []
    for split in in_order(splits.tolist()):
        own = np.flatnonzero(splits == split)
        chosen = {column: Level(classes=level.classes, labels=level.labels[own]) for column, level in coded.items()}
        if columns.path is None:
            datasets.append(
                TableImages(
                    name=name, split=split, table=path, images=table.images, rows=sound[rows[own]], levels=chosen
                )
            )
        else:
            files = [paths[row] for row in rows[own]]
            if is_remote:
                datasets.append(RemoteImages(name=name, split=split, addresses=files, marks=None, levels=chosen))
                continue
            datasets.append(FileDataset(name=name, split=split, root=path.parent, paths=files, levels=chosen))
    return OpenedSource(datasets, notes=notes + split_notes)


class TableImages(Dataset):
    """Encoded images that a Parquet file holds itself."""

    def __init__(
        self,
        *,
        name: str,
        split: str,
        table: Path,
        images: "pyarrow.ChunkedArray",
        rows: np.ndarray,
        levels: Mapping[str, Level],
    ) -> None:
        self.name, self.split, self.levels = name, split, levels
        self.table = table.absolute()  # so that a list of its images holds elsewhere too
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> bytes:
        """The encoded file."""
        data: bytes | None = self.images[int(self.rows[index])].as_py()
        if data is None:
            raise OSError("the table has no image here")
        check_file_size(len(data))
        return data

    def locate(self, index: int) -> str:
        """The table and the row, counted from 1."""
        return f"{self.table}!{self.rows[index] + 1}"


@dataclass(frozen=True)
class _Columns:
    """The columns of a manifest by what they mean."""

    path: str | None  # None: the table holds the images
    label: str | None  # None: there are no labels, or each class has a column
    split: str | None
    levels: tuple[str, ...]
    classes: tuple[str, ...]  # those that have a column each


def _choose_columns(path: Path, table: TextTable, levels: Sequence[str] | None, *, needs_labels: bool) -> _Columns:
    path_column = _find(table, PATH_NAMES) if table.images is None else None
    label_column = _find(table, (*LABEL_NAMES, *SEVERAL_NAMES))
    split_column = _find(table, SPLIT_NAMES)
    if path_column is None and table.images is None:
        raise ValueError(_absent(path, table, PATH_NAMES))
    used = [column for column in (path_column, label_column, split_column) if column is not None]
    classes = find_class_columns(table, used) if label_column is None else ()
    if label_column is None and not classes and needs_labels:
        raise ValueError(_absent(path, table, LABEL_NAMES))
    if split_column is None and any(column.lower() in SPLIT_NAMES for column in table.unread):
        raise ValueError(_absent(path, table, SPLIT_NAMES))
    if label_column is None and not classes:
        levels = ()
    if levels is None:
        taken = {*used, *classes}
        rest = [column for column in table.columns if column not in taken and column.lower() not in PATH_NAMES]
        levels = [column for column in rest if _repeats(table.columns[column])]
    for column in levels:
        if column not in table.columns:
            raise ValueError(_absent(path, table, (column,)))
    return _Columns(path_column, label_column, split_column, tuple(levels), classes)


def _find_faults(table: TextTable, columns: _Columns) -> tuple[np.ndarray, list[Fault]]:
    """The rows that are sound, and what is wrong with the others: empty cells, and paths with a NUL."""
    faults: dict[int, str] = {}
    for column in (columns.path, columns.label, columns.split, *columns.levels):
        if column is None or (column == columns.label and is_several_name(column)):
            continue
        for row, cell in enumerate(table.columns[column]):
            if not cell:
                faults.setdefault(row, f"no {column} given")
            elif column == columns.path and "\0" in cell:
                faults.setdefault(row, f"the path {cell!r} has a NUL byte in it, as no file's name has")
    found = [*table.faults, *(Fault(table.places[row], detail) for row, detail in faults.items())]
    found.sort(key=lambda fault: int(fault.place.rpartition(" ")[2]))
    return np.array([row for row in range(len(table.places)) if row not in faults], dtype=np.int64), found


def _describe_faults(path: Path, faults: Sequence[Fault]) -> str:
    first = f"{path}, {faults[0].place}: {faults[0].detail}"
    if len(faults) == 1:
        return first
    return f"{first}; it is the first of {len(faults):,} faulty lines: `vitrail check {path}` lists them all"


def _read_labels(table: TextTable, columns: _Columns) -> RowLabels | None:
    """The classes of each row; None where the manifest has no labels."""
    if columns.classes:
        return read_class_columns(table, columns.classes)
    return None if columns.label is None else read_label_column(table, columns.label)


def _find(table: TextTable, names: Sequence[str]) -> str | None:
    """The column of the first of those names that there is; capitals do not matter."""
    columns = {column.lower(): column for column in table.columns}
    return next((columns[name] for name in names if name in columns), None)


def _absent(path: Path, table: TextTable, names: Sequence[str]) -> str:
    for column, kind in table.unread.items():
        if column.lower() in names:
            return f"{path}: the column {column!r} holds {kind}, where text or integers are needed"
    if len(table.columns) < 2 or not all(map(_PLAIN_NAME.fullmatch, table.columns)):
        return f"{path} has no column {names[0]!r}: its first line must name the columns, such as path,label"
    columns = {column.lower(): column for column in table.columns}
    near = [match for name in names for match in difflib.get_close_matches(name, columns, n=1, cutoff=0.7)]
    question = f"; is {columns[near[0]]!r} meant?" if near else ""
    return f"{path} has no column {names[0]!r}; its columns are named: {', '.join(table.columns)}{question}"


def _repeats(values: list[str]) -> bool:
    """Whether a column looks like labels, and not like numbers that identify or measure."""
    distinct = set(values)
    return 2 <= len(distinct) <= len(values) / 2 and "" not in distinct and not all(map(_is_fraction, distinct))


def _is_fraction(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.lstrip("+-").isdigit()


def _code(table: TextTable, column: str) -> Level:
    """A column of class names as class indices."""
    values = table.columns[column]
    classes = table.classes.get(column) or ordered(values)
    index = {name: place for place, name in enumerate(classes)}
    return Level(classes=classes, labels=np.array([index[value] for value in values], dtype=np.int64))


def _with_slashes(paths: list[str]) -> list[str]:
    """Paths as written on Windows, readable elsewhere."""
    if any("/" in path for path in paths):
        return paths
    return [path.replace("\\", "/") for path in paths]


def _below_shared_folder(paths: list[str]) -> list[str]:
    """The paths in one spelling; absolute ones without the folder they share: where the data lies must not matter."""
    tidy = [posixpath.normpath(path) for path in paths]
    if not all(map(os.path.isabs, tidy)):
        return tidy
    shared = os.path.commonpath(sorted({os.path.dirname(path) for path in tidy}))
    return [path[len(shared) :].lstrip("/") for path in tidy]


def _look_for_some(manifest: Path, paths: list[str], *, faults: Faults) -> list[Note]:
    """Complain if the paths seem to lead nowhere. Single files that are missing are found when they are read."""
    rows = np.unique(np.linspace(0, len(paths) - 1, num=NUM_LOOKED_FOR).astype(int))
    if any(os.path.exists(manifest.parent / paths[row]) for row in rows):
        return []
    detail = (
        f"none of {len(rows)} files of {manifest} that were looked for exists, the first being "
        f"{(manifest.parent / paths[0]).resolve()}: paths start at the manifest's folder"
    )
    if faults == "refused":
        raise ValueError(detail)
    return [Note("paths lead nowhere", str(manifest), detail, is_serious=True)]


def _note_several_splits(names: Sequence[str], table: TextTable, column: str | None) -> list[Note]:
    """One note for all files whose rows, though they belong together, are of different splits."""
    if column is None:
        return []
    splits: dict[str, str] = {}
    differing = [
        (name, place)
        for name, place, split in zip(names, table.places, table.columns[column], strict=True)
        if splits.setdefault(name, canonical(split)) != canonical(split)
    ]
    if not differing:
        return []
    name, place = differing[0]
    detail = f"listed in {place} for another split than before; lines of that kind: {len(differing)}"
    return [Note("file in two splits", name, f"{detail}; its first line counts", is_serious=True)]


def _note_names(columns: _Columns) -> list[Note]:
    """Note which columns were taken for the two that must be there."""
    return [
        Note("column name", column, f"taken as the column {meaning!r}, which is not there", is_serious=False)
        for column, meaning in ((columns.path, "path"), (columns.label, "label"))
        if column is not None and column.lower() != meaning and not is_several_name(column)
    ]


def _note_repeated(names: list[str], places: Sequence[str], *, labels: list[str]) -> list[Note]:
    """One note for all paths that are listed more than once."""
    rows: dict[str, int] = {}
    repeated: dict[str, tuple[int, int]] = {}
    for row, name in enumerate(names):
        if rows.setdefault(name, row) != row:
            repeated.setdefault(name, (rows[name], row))
    if not repeated:
        return []
    name, (first, second) = next(iter(repeated.items()))
    detail = f"listed again in {places[second]} after {places[first]}"
    if labels[first] != labels[second]:
        detail += f", as {labels[second]!r} after {labels[first]!r}"
        detail += " (call the column 'labels' where a file may have several)"
    if len(repeated) > 1:
        detail += f"; paths that are listed more than once: {len(repeated)}"
    return [Note("path listed twice", name, f"{detail}; keep one line of each", is_serious=True)]
