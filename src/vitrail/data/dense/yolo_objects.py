"""Objects in YOLO's text files: a line each, a box or a polygon in parts of the image's width and height."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vitrail.data.dense.contract import DetectionSet
from vitrail.data.dense.dense_sources import DenseOpening, DetectionSource
from vitrail.data.dense.faults import FaultList
from vitrail.data.dense.image_files import list_folders, list_images, splits_in
from vitrail.data.dense.mask_pairs import has_masks
from vitrail.data.dense.packed_objects import OUTSIDE, ObjectFiles, ObjectRow, PackedObjects
from vitrail.data.stored import printable
from vitrail.storage import content_of, parse_yaml, read_text

YOLO_TABLES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
_REMEDY = "a line is `class x y width height`, or `class x1 y1 x2 y2 x3 y3 ...`, in parts of the image"
_TABLE_REMEDY = "write data.yaml with names, or classes.txt with a class a line"
_BOX = 5  # numbers of a line with a box; a polygon of three corners has seven


def open_yolo(root: Path, *, name: str, opening: DenseOpening) -> DetectionSource:
    """Images and text files of their names: in images/ and labels/, or side by side; with splits or without.

    Classes are in data.yaml, which may also say where the splits are, or in classes.txt. An image without a text file,
    or with an empty one, has no objects.
    """
    place = root.parent if root.is_file() else root
    if not place.is_dir():
        raise ValueError(f"no folder {printable(str(root))}")
    classes, table = _read_table(root)
    faults = opening.make_faults()
    listings = _find_splits(place, table)
    rows = {
        split: [_read_labels(path, num_classes=len(classes), faults=faults) for _, path in listing]
        for split, listing in listings.items()
    }
    for split, listing in listings.items():
        is_marked = any(rows[split])
        if not is_marked or not PackedObjects(rows[split], is_relative=True).is_inside().any():
            told = OUTSIDE if is_marked else _tell_missing(place, listing)
            faults.report_unmarked(printable(str(place)), split=split, num_images=len(listing), looked=told)
    everything = [row for items in rows.values() for objects in items for row in objects]
    is_outlined = bool(everything) and all(row.rings for row in everything)
    sets: list[DetectionSet] = [
        ObjectFiles(
            name=name,
            split=split,
            root=place,
            paths=[image for image, _ in listing],
            objects=PackedObjects(rows[split], is_relative=True),
            has_masks=is_outlined,
        )
        for split, listing in listings.items()
    ]
    parts, split_notes = DetectionSource.complete(sets, opening)
    ids = range(len(classes))  # results of YOLO count classes from 0
    return DetectionSource(
        parts, classes=classes, has_masks=is_outlined, category_ids=ids, notes=[*faults.notes, *split_notes]
    )


def _read_table(root: Path) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The classes, and what data.yaml says besides."""
    path = root if root.is_file() else next((root / name for name in YOLO_TABLES if (root / name).exists()), None)
    if path is None:
        raise ValueError(f"no data.yaml or classes.txt in {printable(str(root))}: {_TABLE_REMEDY}")
    text = read_text(path, remedy=_TABLE_REMEDY)
    if path.suffix not in (".yaml", ".yml"):
        return tuple(line.strip() for line in text.splitlines() if line.strip()), {}
    content = parse_yaml(text, label=str(path), loader=yaml.SafeLoader)
    with content_of(path, remedy=_TABLE_REMEDY):
        names = content.get("names") if isinstance(content, Mapping) else None
        if names is None:
            raise ValueError("it has no `names`")
        if isinstance(names, Mapping):
            if sorted(names) != list(range(len(names))):
                raise ValueError("its names must be numbered from 0 without a gap")
            names = [names[number] for number in range(len(names))]
        if not isinstance(names, list) or not names:
            raise ValueError("it has no list of names")
        return tuple(map(str, names)), content


def _find_splits(root: Path, table: Mapping[str, Any]) -> dict[str, list[tuple[str, Path]]]:
    """Images of each split, relative to the root, and the text files of their labels."""
    named = {split: table[key] for split, key in _split_keys(table).items()}
    base = _find_base(root, table)
    found: dict[str, list[str]] = {}
    for split, places in named.items():
        images = [path for place in _as_list(places) for path in _list_place(base, root, str(place))]
        if images or split == "train":
            found[split] = images
    if not named:
        found = _guess_splits(root)
    if not found.get("train"):
        raise ValueError(
            f"no images to train on in {printable(str(root))}: looked for images/train, train/images, images"
        )
    return {
        split: [(os.path.relpath(path, root), label_path(path)) for path in images]
        for split, images in found.items()
        if images
    }


def _split_keys(table: Mapping[str, Any]) -> dict[str, str]:
    known = (("train", "train"), ("val", "val"), ("val", "valid"), ("test", "test"))
    return {split: key for split, key in known if table.get(key)}


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _find_base(root: Path, table: Mapping[str, Any]) -> Path:
    """The folder that data.yaml calls `path`, where it is there; else its own."""
    said = table.get("path")
    places = [Path(str(said)), root / str(said)] if said else []
    return next((place for place in places if place.is_dir()), root)


def _list_place(base: Path, root: Path, place: str) -> list[str]:
    """The images of a folder, or of a text file that lists them; `../` is forgiven, as exports write too many."""
    bare = place
    while bare.startswith("../"):
        bare = bare.removeprefix("../")
    for path in (base / place, base / bare, root / bare):
        if path.is_dir():
            return [f"{path}/{image}" for image in list_images(path)]
        if path.is_file():
            lines = read_text(path, remedy="it must list an image a line").splitlines()
            return [str((path.parent / line.strip()).absolute()) for line in lines if line.strip()]
    raise ValueError(f"data.yaml in {printable(str(root))} names {place}, which is not there")


def _guess_splits(root: Path) -> dict[str, list[str]]:
    splits = splits_in(root / "images")
    if splits:
        places = {split: root / "images" / folder for split, folder in splits.items()}
    elif splits := splits_in(root):
        places = {
            split: root / folder / ("images" if "images" in list_folders(root / folder) else "")
            for split, folder in splits.items()
        }
    else:
        places = {"train": root / ("images" if "images" in list_folders(root) else "")}
    return {split: [f"{place}/{image}" for image in list_images(place)] for split, place in places.items()}


def label_path(image: str) -> Path:
    """The text file of an image: in labels/ where it lies in images/, else beside it, and of its name."""
    beside = Path(os.path.splitext(image)[0] + ".txt")
    head, mark, tail = str(beside).rpartition(f"{os.sep}images{os.sep}")
    moved = Path(f"{head}{os.sep}labels{os.sep}{tail}")
    return moved if mark and (moved.exists() or not beside.exists()) else beside


def _tell_missing(root: Path, listing: Sequence[tuple[str, Path]]) -> str:
    """Where labels were looked for, and what lies elsewhere and may be them."""
    first = listing[0][1]
    told = f"looked for {printable(os.path.relpath(first, root))} and its like"
    stems = {Path(image).stem for image, _ in listing}
    astray = next((path for path in sorted(root.rglob("*.txt")) if path.stem in stems and path != first), None)
    if first.exists():
        return f"{told}, which are empty"
    if astray is not None:
        return f"{told}, but such files lie in {printable(os.path.relpath(astray.parent, root))}: move them there"
    if has_masks(root):
        return f"{told}; it has masks, from which task=segment learns"
    return f"{told}; write them there, or name the format (coco:FOLDER, voc:FOLDER)"


def _read_labels(path: Path, *, num_classes: int, faults: FaultList) -> list[ObjectRow]:
    if not path.exists():
        return []
    rows = []
    try:
        lines = read_text(path, remedy=_REMEDY).splitlines()
    except ValueError as error:
        faults.report("faulty annotation", printable(str(path)), str(error).removeprefix(f"{path} "))
        return []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(_read_line(line.split(), num_classes=num_classes))
        except ValueError as error:
            faults.report("faulty annotation", printable(str(path)), f"line {number}: {error}")
    return rows


def _read_line(cells: Sequence[str], *, num_classes: int) -> ObjectRow:
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        raise ValueError(f"not all of it are numbers: {_REMEDY}") from None
    if len(values) < _BOX or len(values) % 2 == 0 or not np.isfinite(values).all():
        raise ValueError(f"it has {len(values)} numbers: {_REMEDY}")
    label, places = values[0], values[1:]
    if label != int(label) or not 0 <= label < num_classes:
        raise ValueError(f"its class is {cells[0]}: there are {num_classes}, from 0")
    if np.abs(places).max() > 2:
        raise ValueError(f"its places are in pixels: {_REMEDY}")
    if len(places) == _BOX - 1:
        x, y, width, height = places.tolist()
        if width < 0 or height < 0:
            raise ValueError(f"its box has the size {width:g} x {height:g}")
        return ObjectRow((x - width / 2, y - height / 2, x + width / 2, y + height / 2), int(label))
    corners = places.reshape(-1, 2)
    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    return ObjectRow((left, top, right, bottom), int(label), rings=(corners,))
