"""Labels of a manifest in all their forms: one a row, several in a cell or in several rows, a column for each class."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.data.contract import Level, Note
from vitrail.data.sources.class_names import ordered
from vitrail.data.sources.text_tables import TextTable

SEVERAL_NAMES = ("labels", "classes", "tags", "targets", "categories")  # of columns that list several classes
_MARKS = ("|", ";")  # between the classes of a cell
_YES, _NO = ("1", "1.0", "true"), ("0", "0.0", "false")
_LEAST_CLASS_COLUMNS = 2
_SHARE_OF_SEVERAL = 0.25  # of the files: where more have rows of different labels, the rows belong together


class RowLabels(NamedTuple):
    """The classes of each row."""

    sets: list[tuple[str, ...]]
    classes: tuple[str, ...]
    is_multiple: bool
    notes: list[Note]

    def level(self) -> Level:
        """The labels as numbers: one a row, or zeros and ones where a row may have several."""
        index = {name: place for place, name in enumerate(self.classes)}
        if not self.is_multiple:
            labels = np.array([index[name] for (name,) in self.sets], dtype=np.int64)
            return Level(classes=self.classes, labels=labels)
        hot = np.zeros((len(self.sets), len(self.classes)), dtype=bool)
        for row, names in enumerate(self.sets):
            hot[row, [index[name] for name in names]] = True
        return Level(classes=self.classes, labels=hot)


def find_class_columns(table: TextTable, used: Sequence[str]) -> tuple[str, ...]:
    """The columns that say yes or no of a class each, where there are two or more."""
    known = {*_YES, *_NO}
    found = [
        name
        for name, values in table.columns.items()
        if name not in used and all(value.lower() in known for value in values)
    ]
    return tuple(found) if len(found) >= _LEAST_CLASS_COLUMNS else ()


def read_class_columns(table: TextTable, columns: Sequence[str]) -> RowLabels:
    """The classes whose columns say yes; where every row has just one, as in one-hot codes, that is its label."""
    rows = zip(*(table.columns[column] for column in columns), strict=True)
    sets = [
        tuple(column for column, cell in zip(columns, cells, strict=True) if cell.lower() in _YES) for cells in rows
    ]
    is_multiple = _are_several(sets)
    detail = f"the {len(columns)} columns of 0 and 1 are taken as classes, " + (
        "of which an image may have several, or none" if is_multiple else "of which each image has one"
    )
    return RowLabels(sets, tuple(columns), is_multiple, [Note("columns of classes", columns[0], detail, False)])


def read_label_column(table: TextTable, column: str) -> RowLabels:
    """The classes in the cells of a column: one each, or several with | or ; between them.

    A column called `labels` or the like holds several. In another a mark counts where the cells come to as few classes
    or fewer when they are split there: a name such as "cat|dog" alone is left whole.
    """
    values = table.columns[column]
    is_several = is_several_name(column)
    mark = max(_MARKS, key=lambda each: sum(each in value for value in values))
    if not any(mark in value for value in values):
        plain = [tuple(filter(None, (value,))) for value in values]
        classes = table.classes.get(column) or ordered(value for value in values if value)
        return RowLabels(plain, classes, _are_several(plain), [])
    sets = [tuple(dict.fromkeys(filter(None, map(str.strip, value.split(mark))))) for value in values]
    classes = ordered(name for names in sets for name in names)
    if not is_several and len(classes) > len(set(values)):
        detail = f"cells with {mark!r} are taken as names of classes: call the column 'labels' if they list several"
        names = table.classes.get(column) or ordered(values)
        return RowLabels([(value,) for value in values], names, False, [Note("mark in labels", column, detail, False)])
    detail = f"the cells are split at {mark!r}: an image may have several of {len(classes)} classes"
    return RowLabels(sets, classes, _are_several(sets), [Note("several labels", column, detail, False)])


def _are_several(sets: Sequence[tuple[str, ...]]) -> bool:
    """Whether any row has several classes, or none."""
    return any(len(names) != 1 for names in sets)


def is_several_name(column: str) -> bool:
    """Whether a column's name says that it lists several classes."""
    return column.lower() in SEVERAL_NAMES


def join_rows(found: RowLabels, names: Sequence[str], *, is_several: bool) -> tuple[RowLabels, np.ndarray] | None:
    """All labels of each file in its first row, and those rows; None where rows of one file don't belong together.

    They do where it `is_several` by name, or where more than a quarter of the files have rows of different labels.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    if len(rows) == len(names):
        return None
    num_differing = sum(len({found.sets[row] for row in same}) > 1 for same in rows.values())
    if not is_several and num_differing <= _SHARE_OF_SEVERAL * len(rows):
        return None
    sets = [tuple(dict.fromkeys(name for row in same for name in found.sets[row])) for same in rows.values()]
    detail = f"{len(names)} rows list {len(rows)} files: the labels of a file's rows belong together"
    notes = [*found.notes, Note("several labels", "rows", detail, False)]
    return RowLabels(sets, found.classes, _are_several(sets), notes), np.array([same[0] for same in rows.values()])


def rarest_of_each(level: Level) -> np.ndarray:
    """One class of each image, its rarest, by which images with several are split evenly; -1 for those of none."""
    if not level.is_multiple:
        return level.labels
    if level.labels.shape[1] == 0:
        return np.full(len(level.labels), -1)
    counts = level.labels.sum(axis=0)
    rarity = np.where(level.labels, counts, counts.max(initial=0) + 1)
    return np.where(level.labels.any(axis=1), rarity.argmin(axis=1), -1)
