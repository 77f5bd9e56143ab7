"""Tables as text: CSV and Parquet files read into columns of strings, with the places their rows come from."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from vitrail.data.sources.official import first_line
from vitrail.storage import parse_json

if TYPE_CHECKING:
    import pyarrow

DELIMITERS = (",", ";", "\t")
IMAGE_NAMES = ("image", "img", "bytes", "image_bytes", "jpg", "jpeg", "png")  # of columns that hold encoded files


class Fault(NamedTuple):
    """What is wrong with one row."""

    place: str  # "line 7"
    detail: str


@dataclass(frozen=True)
class TextTable:
    """The columns that hold text or integers, each row's place in the file, and images if the file holds them."""

    columns: Mapping[str, list[str]]  # an empty cell is ""
    places: Sequence[str]  # "line 7"
    classes: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # of the columns whose class list the file states
    images: "pyarrow.ChunkedArray | None" = None  # encoded files (or nulls), where the table holds them itself
    unread: Mapping[str, str] = field(default_factory=dict)  # the type of every other column
    faults: tuple[Fault, ...] = ()  # of rows that could not be read

    def chosen(self, rows: Sequence[int]) -> "TextTable":
        """The table of some of its rows; images stay all."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, places=[self.places[row] for row in rows])


def read_csv(path: Path) -> TextTable:
    """A CSV file in UTF-8 with its columns' names in the first line; separated by commas, semicolons or tabs."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            # The names of the columns contain none of the three, so the right one gives the most names.
            delimiter = max(DELIMITERS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            return _read_rows(path, reader)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not in UTF-8: save it again in that encoding") from None
    except csv.Error as error:  # of the header
        raise ValueError(f"{path}, line 1: cannot be read as CSV: {error}") from None


def _read_rows(path: Path, reader: Any) -> TextTable:
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise ValueError(f"{path} is empty: its first line must name the columns, such as path,label")
    if len(set(header)) < len(header):
        numbers = [place for place, name in enumerate(header, start=1) if header.count(name) > 1][:2]
        raise ValueError(f"{path} has two columns of one name, number {numbers[0]} and number {numbers[1]}")
    columns: list[list[str]] = [[] for _ in header]
    places = []
    faults = []
    try:
        for row in _filled(reader):
            if len(row) != len(header):
                detail = f"{len(row)} cells, but the header names {len(header)} columns"
                faults.append(Fault(f"line {reader.line_num}", detail))
                continue
            places.append(f"line {reader.line_num}")
            for column, cell in zip(columns, row, strict=True):
                column.append(cell.strip())
    except csv.Error as error:
        faults.append(Fault(f"line {reader.line_num}", f"cannot be read as CSV: {error}"))
    return TextTable(dict(zip(header, columns, strict=True)), places, faults=tuple(faults))


def _filled(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if any(cell.strip() for cell in row))


def read_parquet(path: Path) -> TextTable:
    """A Parquet file; columns of other types than text and integers are passed over.

    The table may hold the images itself, as Hugging Face writes them: a column of encoded files, or of structures with
    a field `bytes`. They are kept in memory. Class lists that Hugging Face states in the file are used as they are.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("reading Parquet needs pyarrow: pip install 'vitrail[parquet]'") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    types = pyarrow.types
    stated = _stated_classes(table.schema.metadata or {})
    columns: dict[str, list[str]] = {}
    unread: dict[str, str] = {}
    images = None
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        if types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind):
            values = ["" if value is None else str(value).strip() for value in column.to_pylist()]
            columns[name] = _named(path, name, values, stated[name]) if name in stated else values
            continue
        unread[name] = str(kind)
        if images is None and name.lower() in IMAGE_NAMES:
            images = _encoded(column, pyarrow)
    classes = {name: names for name, names in stated.items() if name in columns}
    return TextTable(columns, [f"row {number}" for number in range(1, len(table) + 1)], classes, images, unread)


def _stated_classes(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """The class lists that the `datasets` library writes into the schema; none where it is not what that writes."""
    try:
        features = dict(parse_json(metadata.get(b"huggingface", b"{}"))["info"]["features"])
    except (ValueError, KeyError, TypeError):
        return {}
    lists = {name: feature.get("names") for name, feature in features.items() if isinstance(feature, dict)}
    return {name: tuple(names) for name, names in lists.items() if _is_class_list(names)}


def _is_class_list(names: object) -> TypeGuard[list[str]]:
    """Whether these are different texts."""
    return (
        isinstance(names, list) and all(isinstance(name, str) for name in names) and 0 < len(names) == len(set(names))
    )


def _named(path: Path, column: str, values: list[str], names: tuple[str, ...]) -> list[str]:
    numbers = {str(number): name for number, name in enumerate(names)}
    for place, value in enumerate(values, start=1):
        if value and value not in numbers:
            raise ValueError(f"{path}, row {place}: {column} is {value}, but the file names {len(names)} classes")
    return [numbers[value] if value else "" for value in values]


def _encoded(column: "pyarrow.ChunkedArray", pyarrow: Any) -> "pyarrow.ChunkedArray | None":
    """The column's encoded files, if that is what it holds; single ones may be missing."""
    field_index = column.type.get_field_index("bytes") if pyarrow.types.is_struct(column.type) else -1
    if field_index >= 0:
        inside = [chunk.flatten()[field_index] for chunk in column.chunks]
        column = pyarrow.chunked_array(inside, type=column.type.field("bytes").type)
    is_bytes = pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)
    return column if is_bytes and column.null_count < len(column) else None
