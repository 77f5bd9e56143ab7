"""Objects in Pascal VOC's XML files: a box each, and a class by name."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from vitrail.data.dense.contract import DetectionSet
from vitrail.data.dense.dense_sources import DenseOpening, DetectionSource
from vitrail.data.dense.faults import FaultList
from vitrail.data.dense.image_files import list_folders, list_images, splits_in
from vitrail.data.dense.packed_objects import ObjectFiles, ObjectRow, PackedObjects
from vitrail.data.dense.voc_folders import VOC, find_voc, read_voc_lists
from vitrail.data.stored import printable
from vitrail.storage import content_of, read_xml

_REMEDY = "it must be an annotation of Pascal VOC, with object/name and object/bndbox"
_IMAGE_FOLDERS = ("JPEGImages", "images")
_XML_FOLDERS = ("Annotations", "annotations", "labels")

Listing = list[tuple[str, Path]]  # images relative to the root, and their annotations


def open_voc_objects(root: Path, *, name: str, opening: DenseOpening) -> DetectionSource:
    """Objects of XML files: by ImageSets/Main/ where it is there, else of every image that has one of its name.

    Classes are VOC's twenty where no other is named, else all names in their order. What is marked "difficult" counts
    as a crowd: nothing is learnt from it, and not finding it is no mistake.
    """
    faults = opening.make_faults()
    place, listings = _find_files(root)
    annotations = {
        split: [_read_annotation(path, faults) for _, path in listing] for split, listing in listings.items()
    }
    for split, items in annotations.items():
        if not any(item.labels for item in items):
            looked = f"looked for object in {printable(str(listings[split][0][1]))} and its like"
            faults.report_unmarked(printable(str(place)), split=split, num_images=len(items), looked=looked)
    found = {label for items in annotations.values() for item in items for label in item.labels}
    classes = VOC if found <= set(VOC) else tuple(sorted(found))
    sets: list[DetectionSet] = []
    for split, listing in listings.items():
        items = annotations[split]
        sets.append(
            ObjectFiles(
                name=name,
                split=split,
                root=place,
                paths=[image for image, _ in listing],
                objects=PackedObjects([item.rows(classes) for item in items]),
                has_masks=False,
                sizes=np.array([item.size for item in items], dtype=np.int64).reshape(-1, 2),
            )
        )
    parts, split_notes = DetectionSource.complete(sets, opening)
    return DetectionSource(parts, classes=classes, has_masks=False, notes=[*faults.notes, *split_notes])


class _Annotation:
    """What one file says."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size  # height and width; 0 where it says none
        self.labels: list[str] = []
        self.boxes: list[tuple[float, float, float, float]] = []
        self.is_difficult: list[bool] = []

    def rows(self, classes: Sequence[str]) -> list[ObjectRow]:
        """The objects, with places in the list of classes."""
        found = zip(self.boxes, self.labels, self.is_difficult, strict=True)
        return [ObjectRow(box, classes.index(label), is_crowd=is_difficult) for box, label, is_difficult in found]


def _read_annotation(path: Path, faults: FaultList) -> _Annotation:
    try:
        root = read_xml(path, remedy=_REMEDY)
        with content_of(path, remedy=_REMEDY):
            annotation = _Annotation((_number(root, "size/height", 0), _number(root, "size/width", 0)))
            for item in root.iter("object"):
                annotation.boxes.append(_read_box(item))
                annotation.labels.append(_text(item, "name"))
                annotation.is_difficult.append(_number(item, "difficult", 0) == 1)
            return annotation
    except ValueError as error:
        faults.report("faulty annotation", printable(str(path)), str(error).removeprefix(f"{path} "))
        return _Annotation((0, 0))


def _read_box(item: Element) -> tuple[float, float, float, float]:
    """The box from 0 with its ends exclusive; VOC counts pixels from 1, and both ends belong to the box."""
    left, top, right, bottom = (float(_text(item, f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax"))
    if not np.isfinite([left, top, right, bottom]).all():
        raise ValueError("a box has an edge that is no number")
    if right < left or bottom < top:
        raise ValueError(f"the box {left:g}, {top:g}, {right:g}, {bottom:g} ends before it begins")
    return max(0.0, left - 1) if left >= 0 else left, max(0.0, top - 1) if top >= 0 else top, right, bottom


def _text(item: Element, name: str) -> str:
    text = (item.findtext(name) or "").strip()
    if not text:
        raise ValueError(f"an object has no {name}")
    return text


def _number(item: Element, name: str, otherwise: int) -> int:
    text = (item.findtext(name) or "").strip()
    return int(float(text)) if text else otherwise


def _find_files(root: Path) -> tuple[Path, dict[str, Listing]]:
    if not root.is_dir():
        raise ValueError(f"no folder {printable(str(root))}")
    try:
        place = find_voc(root)
        lists = read_voc_lists(place / "ImageSets" / "Main")
    except ValueError:
        return root, _list_pairs(root)
    listings = {
        split: [(f"JPEGImages/{name}.jpg", place / "Annotations" / f"{name}.xml") for name in names]
        for split, names in lists.items()
    }
    return place, listings


def _list_pairs(root: Path) -> dict[str, Listing]:
    """Images and the XML files of their names, in folders of their own or beside each other, with splits or without."""
    splits = splits_in(root) or {"train": ""}
    listings = {}
    for split, folder in splits.items():
        inner = list_folders(root / folder)
        images = next((name for name in _IMAGE_FOLDERS if name in inner), "")
        xml = next((name for name in _XML_FOLDERS if name in inner), "")
        base = Path(folder)
        found = [(path, (root / base / xml / path).with_suffix(".xml")) for path in list_images(root / base / images)]
        listings[split] = [((base / images / path).as_posix(), file) for path, file in found if file.is_file()]
    if not any(listings.values()):
        raise ValueError(f"no images with XML files of their names in {printable(str(root))}")
    if "train" not in listings:
        raise ValueError(f"{printable(str(root))} has no folder train")
    return {split: listing for split, listing in listings.items() if listing}
