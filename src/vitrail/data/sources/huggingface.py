"""Hugging Face data sets, from the hub (`hf://owner/name`) or from a folder (`hf:///folder`): extra `hf`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.sources.class_names import ordered
from vitrail.data.sources.official import first_line, hold_out
from vitrail.data.splits import canonical
from vitrail.data.stored import OpenedSource, Subset

if TYPE_CHECKING:
    import datasets

PREFIX = "hf://"
_ADDRESS = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@:\s]+))?(:(?P<configuration>[^/:\s]+))?", re.ASCII
)
_IMAGE_COLUMNS = ("image", "img")  # in order of preference, before all others
_LABEL_COLUMNS = ("label", "labels", "fine_label", "fine_labels")


class HuggingFaceDataset(Dataset):
    """Rows of a memory-mapped table, whose image column is not decoded."""

    def __init__(self, rows: "datasets.Dataset", *, name: str, split: str, levels: Mapping[str, Level]) -> None:
        self.name, self.split, self.levels = name, split, levels
        self.rows = rows  # the image column alone
        self._column = rows.column_names[0]

    def read(self, index: int) -> bytes:
        """The encoded image: held by the table, or in the file that it names."""
        image = self.rows[index][self._column]
        if image is None or (image["bytes"] is None and image["path"] is None):
            raise OSError("the table has no image here")
        data: bytes | None = image["bytes"]
        return Path(image["path"]).read_bytes() if data is None else data

    def locate(self, index: int) -> str:
        """The source, the split and the row."""
        return f"{self.name}/{self.split}/{index}"


def open_huggingface(location: str, *, val_share: float = 0.1, seed: int = 0) -> Source:
    """`hf://owner/name`, `hf://owner/name@revision`, `hf://owner/name:configuration`, or a folder: `hf:///folder`.

    A folder is what `save_to_disk` wrote, or anything else that `datasets.load_dataset` understands. Every column of
    class labels is a level; the one called label (or fine_label, or else the first) comes first, as `label`. Without
    such a column, one called label that holds text or integers is taken. Without a val, a `val_share` of train is set
    aside, decided by `seed`. Rows without a label, as hubs publish for hidden test sets, are left out.
    """
    name = PREFIX + location.removeprefix(PREFIX)
    tables = _load(name)
    features = next(iter(tables.values())).features
    image = _image_column(features, name)
    columns = _label_columns(features, name)
    classes = {level: _classes(tables, column) for level, column in columns.items()}
    notes: list[Note] = []
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
    folder = Path(place).expanduser()
    match = _ADDRESS.fullmatch(place)
    is_folder = folder.is_absolute() or place.startswith((".", "~"))
    if is_folder and not folder.is_dir():
        raise ValueError(f"{location}: there is no folder {folder}")
    if not is_folder and match is None:
        raise ValueError(
            f"{location!r} is not of the form hf://owner/name, hf://owner/name:configuration, hf:///folder"
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


def _image_column(features: Mapping[str, Any], name: str) -> str:
    import datasets

    columns = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    if not columns:
        raise ValueError(f"{name} has no column of images; its columns are: {', '.join(features)}")
    return _first_of(columns, _IMAGE_COLUMNS)


def _label_columns(features: Mapping[str, Any], name: str) -> dict[str, str]:
    """The column of each level, the main one first."""
    import datasets

    columns = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not columns:
        kind = re.compile(r"(large_)?string|bool|u?int\d+")
        plain = [column for column, feature in features.items() if kind.fullmatch(str(getattr(feature, "dtype", "")))]
        columns = [column for column in _LABEL_COLUMNS if column in plain][:1]
    if not columns:
        raise ValueError(f"{name} has no column of class labels, nor one called label; it has: {', '.join(features)}")
    main = _first_of(columns, _LABEL_COLUMNS)
    others = {re.sub(r"(?<=.)_labels?$", "", column): column for column in columns if column != main}
    return {"label": main, **others}


def _first_of(columns: Sequence[str], preferred: Sequence[str]) -> str:
    return next((column for column in preferred if column in columns), columns[0])


def _classes(tables: "Mapping[str, datasets.Dataset]", column: str) -> tuple[str, ...]:
    """The class list that the data set states, or the values that occur in any split."""
    import datasets

    feature = next(iter(tables.values())).features[column]
    if isinstance(feature, datasets.ClassLabel):
        return tuple(feature.names)
    return ordered(str(value) for table in tables.values() for value in set(table[column]) if value is not None)


def _labels(table: "datasets.Dataset", column: str, classes: tuple[str, ...]) -> np.ndarray:
    """Class indices, -1 where there is none."""
    import datasets

    values = list(table[column])
    if isinstance(table.features[column], datasets.ClassLabel):
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)
    indices = {name: index for index, name in enumerate(classes)}
    return np.array([-1 if value is None else indices[str(value)] for value in values], dtype=np.int64)
