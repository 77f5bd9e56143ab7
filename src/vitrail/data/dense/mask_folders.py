"""A folder of images and one of masks, with a table that says which value or colour is which class."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.dense.contract import IGNORED, Colour
from vitrail.data.dense.dense_sources import DenseOpening, SegmentationSource
from vitrail.data.dense.faults import FaultList
from vitrail.data.dense.mask_files import MaskCode, read_stored
from vitrail.data.dense.mask_pairs import MaskPairs, find_pair_folders, open_pair_folders
from vitrail.data.stored import printable
from vitrail.storage import content_of, read_text

# Files that may say the classes, the first one that is there; the others' forms are those of Kaggle's CamVid and CVAT.
TABLES = ("classes.csv", "classes.txt", "class_dict.csv", "labelmap.txt")
_UNLEARNT = frozenset({"void", "ignore", "ignored", "unlabelled", "unlabeled"})
_COLUMNS = {"r": "red", "g": "green", "b": "blue", "class": "name", "label": "name", "id": "value"}
_CHANNELS = ("red", "green", "blue")
_REMEDY = "write a class a line: name, or the columns name and value, or name, red, green and blue"
_NUM_LOOKED_AT = 20  # masks, to say which values there are


@dataclass(frozen=True)
class ClassRow:
    """A line of the table."""

    name: str
    value: int | None = None  # None: its place in the table
    colour: Colour | None = None

    @property
    def is_learnt(self) -> bool:
        """Whether it is a class, not a name for what is to be ignored."""
        return self.name.lower() not in _UNLEARNT


def open_pairs(root: Path, *, opening: DenseOpening) -> SegmentationSource:
    """Images and masks of a folder, in any layout of `find_pair_folders`."""
    name = root.name or root.resolve().name
    if not root.is_dir():
        raise ValueError(f"no folder {printable(str(root))}")
    folders = find_pair_folders(root)
    if not folders:
        raise ValueError(
            f"{printable(str(root))} has no images/ and masks/, neither in itself nor for each of train, val and test"
        )
    table = _find_table(root)
    faults = FaultList("noted") if table is None else opening.make_faults()  # that there is no table is told first
    code, classes, colours = _make_code(table, path=root) if table is not None else (MaskCode({}), (), None)
    sets = [
        open_pair_folders(root, pair, split or "train", name=name, code=code, faults=faults)
        for split, pair in folders.items()
    ]
    if table is None:
        raise ValueError(_describe_missing(root, sets[0]))
    parts, notes = SegmentationSource.complete(sets, opening)
    return SegmentationSource(parts, classes=classes, colours=colours, notes=[*faults.notes, *notes])


def _describe_missing(root: Path, pairs: MaskPairs) -> str:
    """What to say where there is no table: with the values that the first masks hold."""
    found: set[int] = set()
    for index in range(min(len(pairs), _NUM_LOOKED_AT)):
        stored = read_stored(pairs.read_stored_mask(index))
        if stored.ndim == 3:
            return f"{printable(str(root))} has no classes.csv: masks are in colours, write name,red,green,blue in it"
        found.update(stored.reshape(-1).tolist())
    values = sorted(found - {IGNORED})
    told = f" (the first masks hold {', '.join(map(str, values[:20]))})" if values else ""
    return (
        f"{printable(str(root))} has no classes.txt: write the names of the classes, a line each, the first for the "
        f"value 0{told}"
    )


def _find_table(root: Path) -> list[ClassRow] | None:
    for name in TABLES:
        if (root / name).exists():
            return read_table(root / name)
    return None


def read_table(path: Path) -> list[ClassRow]:
    """The classes that a file says."""
    lines = [line.strip() for line in read_text(path, remedy=_REMEDY).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    with content_of(path, remedy=_REMEDY):
        if path.name == "labelmap.txt":
            rows = [_read_labelmap_line(line) for line in lines]
        elif path.suffix == ".csv":
            rows = _read_columns(lines)
        else:
            rows = [_read_line(line) for line in lines]
        if not any(row.is_learnt for row in rows):
            raise ValueError("it names no class")
        if len({row.colour is None for row in rows}) > 1:
            raise ValueError("some classes have a colour, and some have none")
        return rows


def _read_labelmap_line(line: str) -> ClassRow:
    name, colour, *_ = line.split(":")
    return ClassRow(name, colour=_read_colour(colour.split(",")))


def _read_columns(lines: Sequence[str]) -> list[ClassRow]:
    if not lines:
        return []
    heads = [_COLUMNS.get(head.strip().lower(), head.strip().lower()) for head in lines[0].split(",")]
    if "name" not in heads:
        raise ValueError("its first line has no column `name`")
    rows = []
    for line in lines[1:]:
        cells = dict(zip(heads, (cell.strip() for cell in line.split(",")), strict=False))
        lacking = next((head for head in ("name", *_CHANNELS[: 3 * ("red" in heads)]) if head not in cells), None)
        if lacking is not None:
            raise ValueError(f"the line {line!r} has no {lacking}")
        colour = None
        if "red" in heads:
            colour = _read_colour([cells[part] for part in _CHANNELS])
        rows.append(ClassRow(cells["name"], int(cells["value"]) if cells.get("value") else None, colour))
    return rows


def _read_line(line: str) -> ClassRow:
    """`name`, `name,red,green,blue` or `red green blue name`."""
    if found := re.fullmatch(r"(.+?)[,;\t ]\s*(\d+)[,;\t ]\s*(\d+)[,;\t ]\s*(\d+)", line):
        return ClassRow(found[1].strip(), colour=_read_colour(found.groups()[1:]))
    if found := re.fullmatch(r"(\d+)[,;\t ]\s*(\d+)[,;\t ]\s*(\d+)[,;\t ]\s*(\S.*)", line):
        return ClassRow(found[4].strip(), colour=_read_colour(found.groups()[:3]))
    return ClassRow(line)


def _read_colour(cells: Sequence[str]) -> Colour:
    red, green, blue = (int(cell) for cell in cells)
    if not all(0 <= value <= 255 for value in (red, green, blue)):
        raise ValueError(f"{red}, {green}, {blue} is no colour")
    return red, green, blue


def _make_code(table: Sequence[ClassRow], *, path: Path) -> tuple[MaskCode, tuple[str, ...], tuple[Colour, ...] | None]:
    """What masks' values mean, the classes and their colours."""
    learnt = [row for row in table if row.is_learnt]
    classes = tuple(row.name for row in learnt)
    places = [learnt.index(row) if row.is_learnt else IGNORED for row in table]
    colours = [row.colour for row in table if row.colour is not None]
    values = [place if row.value is None else row.value for place, row in enumerate(table)]
    if colours and not any(row.value is not None for row in table):
        if len(set(colours)) < len(colours):
            raise ValueError(f"two classes of the table in {printable(str(path))} have one colour")
        return MaskCode(colours=dict(zip(colours, places, strict=True))), classes, _colours_of(learnt)
    if len(set(values)) < len(values) or not all(0 <= value < 1 << 16 for value in values):
        raise ValueError(f"the values of the table in {printable(str(path))} must differ, and lie between 0 and 65535")
    return MaskCode(dict(zip(values, places, strict=True))), classes, _colours_of(learnt)


def _colours_of(rows: Sequence[ClassRow]) -> tuple[Colour, ...] | None:
    colours = [row.colour for row in rows if row.colour is not None]
    return tuple(colours) if len(colours) == len(rows) else None
