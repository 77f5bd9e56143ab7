"""Hugging Face data sets, from the hub (`hf://owner/name`) or from a folder (`hf:///folder`): extra `hf`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.regular_files import read_regular_file
from vitrail.data.sources.class_names import note_classes, ordered
from vitrail.data.sources.official import first_line, hold_out
from vitrail.data.splits import canonical
from vitrail.data.stored import OpenedSource, Subset

if TYPE_CHECKING:
    import datasets

PREFIX = "hf://"
_ADDRESS = re.compile(
    r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^/@:\s]+))?(:(?P<configuration>[^/:\s]+))?", re.ASCII
)
_IMAGE_COLUMNS = ("image", "img")  # in order of preference, before all others
_LABEL_COLUMNS = ("label", "labels", "fine_label", "fine_labels")


class HuggingFaceDataset(Dataset):
    """Rows of a memory-mapped table, whose image column is not decoded."""

    def __init__(self, rows: "datasets.Dataset", *, name: str, split: str, levels: Mapping[str, Level]) -> None:
        self.name, self.split, self.levels = name, split, levels
        self.rows = rows  # the image column alone
        self._column = rows.column_names[0]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> bytes:
        """The encoded image: held by the table, or in the file that it names."""
        image = self.rows[index][self._column]
        if image is None or (image["bytes"] is None and image["path"] is None):
            raise OSError("the table has no image here")
        data: bytes | None = image["bytes"]
        return read_regular_file(image["path"]) if data is None else data

    def locate(self, index: int) -> str:
        """The source, the split and the row."""
        return f"{self.name}/{self.split}/{index}"


def open_huggingface(location: str, *, val_share: float = 0.1, seed: int = 0) -> Source:
    """`hf://owner/name`, `hf://owner/name@revision`, `hf://owner/name:configuration`, or a folder: `hf:///folder`.

    A folder is what `save_to_disk` wrote, or anything else that `datasets.load_dataset` understands. Every column of
    class labels is a level; the one called label (or fine_label, or else the first) comes first, as `label`. Without
    such a column, one called label that holds text or integers is taken. The splits' classes are matched by name, as
    each may list them in an order of its own. Without a val, a `val_share` of train is set aside, decided by `seed`.
    Rows without a label, as hubs publish for hidden test sets, and splits without the column are left out.
    """
    name = PREFIX + location.removeprefix(PREFIX)
    tables = _load(name)
    features = _main_table(tables).features
    image = _image_column(features, name)
    columns = _label_columns(features, name)
    tables, columns, notes = _keep_complete(tables, image, columns)
    classes = {level: _classes(tables, column) for level, column in columns.items()}
    parts: list[Dataset] = []
    for original, table in tables.items():
        split = canonical(str(original))
        if split in [part.split for part in parts]:
            split = str(original)
        levels = {level: Level(classes[level], _labels(table, columns[level], classes[level])) for level in columns}
        rows = table.select_columns([image]).cast_column(image, _undecoded_image())
        dataset: Dataset = HuggingFaceDataset(rows, name=name, split=split, levels=levels)
        known = np.flatnonzero(np.all([level.labels >= 0 for level in levels.values()], axis=0))
        if len(known) < len(dataset):
            detail = f"{len(dataset) - len(known)} of {len(dataset)} rows have no label and are left out"
            notes.append(Note("label missing", str(original), detail, is_serious=False))
            dataset = Subset(dataset, known)
        if len(known):
            parts.append(dataset)
    if not parts:
        raise ValueError(f"{name} has no labelled images")
    labels = np.concatenate([part.level().labels for part in parts])
    splits = np.repeat([part.split for part in parts], [len(part) for part in parts])
    notes += note_classes(Level(classes["label"], labels), splits)
    by_split = {part.split: part for part in parts}
    if "val" not in by_split and "train" in by_split:
        train = by_split.pop("train")
        names = [str(index) for index in range(len(train))]
        halves, more = hold_out(train, names, share=val_share, seed=seed)
        parts, notes = [*halves, *by_split.values()], [*notes, *more]
    return OpenedSource(parts, notes=notes)


def _load(location: str) -> "Mapping[str, datasets.Dataset]":
    """The tables of all splits."""
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ValueError("hf:// needs the package datasets: pip install 'vitrail[hf]'") from error
    place = location.removeprefix(PREFIX)
    folder = Path(place)
    match = _ADDRESS.fullmatch(place)
    is_folder = place.startswith("/") or folder.is_absolute()
    if is_folder and not os.path.isdir(folder):
        raise ValueError(f"{location}: there is no folder {folder}")
    if not is_folder and match is None:
        raise ValueError(
            f"{location!r} is not of the form hf://owner/name, hf://owner/name:configuration, hf:///folder"
        )
    if match is not None and os.path.isdir(match["repository"]):  # datasets would read it in the place of the hub's
        raise ValueError(
            f"{location} is a data set of the hub, but here lies a folder {match['repository']}: "
            f"write hf://{Path(match['repository']).absolute()} for the folder, or start elsewhere for the hub"
        )
    try:
        if is_folder and any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(str(folder))
        elif is_folder:
            found = datasets.load_dataset(str(folder))
        else:
            assert match is not None
            found = datasets.load_dataset(match["repository"], name=match["configuration"], revision=match["revision"])
    except (OSError, ValueError, DatasetsError) as error:
        reason = " ".join(str(error).split()) if "Config name" in str(error) else first_line(error)
        raise ValueError(f"{location} could not be opened: {reason}") from error
    return {"train": found} if isinstance(found, datasets.Dataset) else found


def _undecoded_image() -> "datasets.Image":
    import datasets

    return datasets.Image(decode=False)


def _main_table(tables: "Mapping[str, datasets.Dataset]") -> "datasets.Dataset":
    """The table whose columns decide: train, or else the first, among those that have images and labels if any have."""
    train_first = sorted(tables, key=lambda split: canonical(str(split)) != "train")
    whole = (split for split in train_first if _images(tables[split].features) and _labelled(tables[split].features))
    return tables[next(whole, train_first[0])]


def _keep_complete(
    tables: "Mapping[str, datasets.Dataset]", image: str, columns: Mapping[str, str]
) -> "tuple[dict[str, datasets.Dataset], dict[str, str], list[Note]]":
    """The splits that have images and labels, the levels that all of those have, and notes about the rest."""
    kept: dict[str, datasets.Dataset] = {}
    notes = []
    for split, table in tables.items():
        lacking = [column for column in (image, columns["label"]) if column not in table.column_names]
        if lacking:
            detail = f"no column {lacking[0]!r} in this split: it was left out"
            notes.append(Note("column missing", str(split), detail, is_serious=False))
        else:
            kept[split] = table
    levels = {}
    for level, column in columns.items():
        without = [str(split) for split, table in kept.items() if column not in table.column_names]
        if without:
            detail = f"not in {' and '.join(without)}: these labels were left out"
            notes.append(Note("column missing", column, detail, is_serious=False))
        else:
            levels[level] = column
    return kept, levels, notes


def _images(features: Mapping[str, Any]) -> list[str]:
    """The columns of images."""
    import datasets

    return [column for column, feature in features.items() if isinstance(feature, datasets.Image)]


def _image_column(features: Mapping[str, Any], name: str) -> str:
    columns = _images(features)
    if not columns:
        raise ValueError(f"{name} has no column of images; its columns are: {', '.join(features)}")
    return _first_of(columns, _IMAGE_COLUMNS)


def _labelled(features: Mapping[str, Any]) -> list[str]:
    """The columns of class labels, or else one that is called label."""
    import datasets

    columns = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not columns:
        kind = re.compile(r"(large_)?string|bool|u?int\d+")
        plain = [column for column, feature in features.items() if kind.fullmatch(str(getattr(feature, "dtype", "")))]
        columns = [column for column in _LABEL_COLUMNS if column in plain][:1]
    return columns


def _label_columns(features: Mapping[str, Any], name: str) -> dict[str, str]:
    """The column of each level, the main one first."""
    columns = _labelled(features)
    if not columns:
        raise ValueError(f"{name} has no column of class labels, nor one called label; it has: {', '.join(features)}")
    main = _first_of(columns, _LABEL_COLUMNS)
    others = {re.sub(r"(?<=.)_labels?$", "", column): column for column in columns if column != main}
    return {"label": main, **others}


def _first_of(columns: Sequence[str], preferred: Sequence[str]) -> str:
    return next((column for column in preferred if column in columns), columns[0])


def _classes(tables: "Mapping[str, datasets.Dataset]", column: str) -> tuple[str, ...]:
    """The class lists that the splits state, the first one first; or the values that occur in any split."""
    stated = [_stated(table, column) for table in tables.values()]
    unstated = [table for table, names in zip(tables.values(), stated, strict=True) if names is None]
    occurring = ordered(str(value) for table in unstated for value in set(table[column]) if value is not None)
    return tuple(dict.fromkeys([*(name for names in stated for name in names or ()), *occurring]))


def _stated(table: "datasets.Dataset", column: str) -> list[str] | None:
    """The names of the classes that a table numbers; None if it holds the names themselves."""
    import datasets

    feature = table.features[column]
    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None


def _labels(table: "datasets.Dataset", column: str, classes: tuple[str, ...]) -> np.ndarray:
    """Class indices, -1 where there is none."""
    indices = {name: index for index, name in enumerate(classes)}
    names = _stated(table, column)
    if names is None:
        return np.array([-1 if value is None else indices[str(value)] for value in table[column]], dtype=np.int64)
    own = np.array([-1 if value is None or value < 0 else value for value in table[column]], dtype=np.int64)
    if len(own) and own.max() >= len(names):
        raise ValueError(f"the column {column!r} holds the class {own.max()}, but names only {len(names)} classes")
    return np.array([*(indices[name] for name in names), -1], dtype=np.int64)[own]
