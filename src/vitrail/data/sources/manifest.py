"""A manifest: a CSV or Parquet file that lists images and their labels."""

import difflib
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.regular_files import check_file_size
from vitrail.data.sources.class_names import note_classes, ordered
from vitrail.data.sources.official import first_line
from vitrail.data.sources.text_tables import TextTable, read_csv, read_parquet
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
NUM_LOOKED_FOR = 20  # files, spread over the manifest, of which at least one must exist


def open_manifest(
    path: Path,
    *,
    name: str,
    val_share: float = 0.1,
    seed: int = 0,
    levels: Sequence[str] | None = None,
    needs_labels: bool = True,
) -> Source:
    """The images that a CSV or Parquet file lists, in its order.

    Columns: `path` (below the manifest's folder, or absolute), `label` and, if there is one, `split`; usual other names
    for them are understood, and noted. Further labels are the columns that `levels` names; by default all others of
    text or integers whose values repeat (two or more, at most half as many as rows) and which have no empty cell.
    They are called like their columns; the first level is `label`. The classes of each are one list for all splits: by
    number if all are integers, else as strings. A Parquet file may hold the images itself, and state its classes; their
    order is then kept. Where no labels are needed, a file without the column `label` has no levels.
    """
    try:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        table = read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or first_line(error)}") from None
    if not table.places:
        raise ValueError(f"{path} lists no images")
    columns = _choose_columns(path, table, levels, needs_labels=needs_labels)
    coded: dict[str, Level] = {}
    if columns.label is not None:
        coded = {"label": _code(table, columns.label)} | {column: _code(table, column) for column in columns.levels}
    main = coded.get("label")
    splits = None
    if columns.split is not None:
        splits = np.array([canonical(text) for text in table.columns[columns.split]], dtype=object)
    notes = _note_names(columns) + ([] if main is None else note_classes(main, splits))
    paths: list[str] = []
    names = [str(row) for row in range(len(table.places))]  # what the automatic split goes by
    if columns.path is not None:
        paths = _with_slashes(table.columns[columns.path])
        _refuse_nul(path, paths, table.places)
        _look_for_some(path, paths)
        names = _below_shared_folder(paths)
        labels = [""] * len(names) if columns.label is None else table.columns[columns.label]
        notes += _note_repeated(names, table.places, labels=labels)
    splits, split_notes = complete(
        splits, names=names, labels=None if main is None else main.labels, share=val_share, seed=seed
    )
    datasets: list[Dataset] = []
    for split in in_order(splits.tolist()):
        rows = np.flatnonzero(splits == split)
        chosen = {column: Level(classes=level.classes, labels=level.labels[rows]) for column, level in coded.items()}
        if columns.path is None:
            datasets.append(
                TableImages(name=name, split=split, table=path, images=table.images, rows=rows, levels=chosen)
            )
        else:
            files = [paths[row] for row in rows]
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
    label: str | None  # None: there are no labels
    split: str | None
    levels: tuple[str, ...]


def _choose_columns(path: Path, table: TextTable, levels: Sequence[str] | None, *, needs_labels: bool) -> _Columns:
    path_column = _find(table, PATH_NAMES) if table.images is None else None
    label_column = _find(table, LABEL_NAMES)
    split_column = _find(table, SPLIT_NAMES)
    if path_column is None and table.images is None:
        raise ValueError(_absent(path, table, PATH_NAMES))
    if label_column is None and needs_labels:
        raise ValueError(_absent(path, table, LABEL_NAMES))
    if split_column is None and any(column.lower() in SPLIT_NAMES for column in table.unread):
        raise ValueError(_absent(path, table, SPLIT_NAMES))
    used = [column for column in (path_column, label_column, split_column) if column is not None]
    if label_column is None:
        levels = ()
    if levels is None:
        rest = [column for column in table.columns if column not in used and column.lower() not in PATH_NAMES]
        levels = [column for column in rest if _repeats(table.columns[column])]
    for column in (*used, *levels):
        if column not in table.columns:
            raise ValueError(_absent(path, table, (column,)))
        if "" in table.columns[column]:
            place = table.places[table.columns[column].index("")]
            raise ValueError(f"{path}, {place}: no {column} given")
    return _Columns(path_column, label_column, split_column, tuple(levels))


def _find(table: TextTable, names: Sequence[str]) -> str | None:
    """The column of the first of those names that there is; capitals do not matter."""
    columns = {column.lower(): column for column in table.columns}
    return next((columns[name] for name in names if name in columns), None)


def _absent(path: Path, table: TextTable, names: Sequence[str]) -> str:
    for column, kind in table.unread.items():
        if column.lower() in names:
            return f"{path}: the column {column!r} holds {kind}, where text or integers are needed"
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


def _refuse_nul(manifest: Path, paths: list[str], places: Sequence[str]) -> None:
    """Refuse a path with a NUL, which no file can have; mostly the manifest was damaged."""
    for path, place in zip(paths, places, strict=True):
        if "\0" in path:
            raise ValueError(f"{manifest}, {place}: the path {path!r} has a NUL byte in it, as no file's name has")


def _below_shared_folder(paths: list[str]) -> list[str]:
    """The paths in one spelling; absolute ones without the folder they share: where the data lies must not matter."""
    tidy = [posixpath.normpath(path) for path in paths]
    if not all(map(os.path.isabs, tidy)):
        return tidy
    shared = os.path.commonpath(sorted({os.path.dirname(path) for path in tidy}))
    return [path[len(shared) :].lstrip("/") for path in tidy]


def _look_for_some(manifest: Path, paths: list[str]) -> None:
    """Complain if the paths seem to lead nowhere. Single files that are missing are found when they are read."""
    rows = np.unique(np.linspace(0, len(paths) - 1, num=NUM_LOOKED_FOR).astype(int))
    if not any(os.path.exists(manifest.parent / paths[row]) for row in rows):
        raise ValueError(
            f"none of {len(rows)} files of {manifest} that were looked for exists, the first being "
            f"{(manifest.parent / paths[0]).resolve()}: paths start at the manifest's folder"
        )


def _note_names(columns: _Columns) -> list[Note]:
    """Note which columns were taken for the two that must be there."""
    return [
        Note("column name", column, f"taken as the column {meaning!r}, which is not there", is_serious=False)
        for column, meaning in ((columns.path, "path"), (columns.label, "label"))
        if column is not None and column.lower() != meaning
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
    if len(repeated) > 1:
        detail += f"; paths that are listed more than once: {len(repeated)}"
    return [Note("path listed twice", name, f"{detail}; keep one line of each", is_serious=True)]
