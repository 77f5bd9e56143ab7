"""Objects in COCO's JSON files: boxes, polygons, run lengths and crowds."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.contract import Note
from vitrail.data.decode import MAX_PIXELS
from vitrail.data.dense.dense_sources import DenseOpening, DetectionSource
from vitrail.data.dense.faults import FaultList
from vitrail.data.dense.packed_objects import OUTSIDE, ObjectFiles, ObjectRow, PackedObjects
from vitrail.data.dense.run_lengths import check_runs, parse_text
from vitrail.data.splits import ALIASES, SPLITS, canonical
from vitrail.data.stored import printable
from vitrail.storage import content_of, read_json_object

_REMEDY = "it must be a COCO file with images, annotations and categories"
_NUM_TRIED = 3  # images that are looked for in a folder before it is taken for theirs
_SHOWN = 60  # letters of a wrong value that a message shows
_MIN_RING = 6  # numbers of a triangle


def open_coco(root: Path, *, name: str, opening: DenseOpening) -> DetectionSource:
    """The objects of `annotations/instances_SPLIT*.json`, `SPLIT/_annotations.coco.json` or their like below a folder.

    Images lie in a folder of the split's name, in `images`, or beside the file. Where there is no file for val, as for
    the path of a single one, it is taken from train.
    """
    files, faults = _find_files(root), opening.make_faults()
    place = root.parent if root.is_file() else root
    read = {split: _CocoFile.read(path, faults) for split, path in files.items()}
    first = next(iter(read.values()))
    for split, other in read.items():
        if other.categories != first.categories:
            raise ValueError(f"{files[split]} has other categories than {first.path}: they must be the same")
    has_masks = all(bool(file.objects.has_outline.all()) for file in read.values())
    sets = [file.make_set(place, split=split, name=name, has_masks=has_masks) for split, file in read.items()]
    for split, file in read.items():
        num_objects = len(file.objects.labels)
        if not num_objects or not file.objects.is_inside(file.sizes).any():
            looked = OUTSIDE if num_objects else "its list of annotations is empty"
            faults.report_unmarked(file.path, split=split, num_images=len(file.names), looked=looked)
    notes = [*faults.notes, *(note for file in read.values() for note in file.note_outlines(has_masks=has_masks))]
    parts, split_notes = DetectionSource.complete(sets, opening)
    classes = tuple(first.categories.values())
    return DetectionSource(
        parts, classes=classes, has_masks=has_masks, category_ids=tuple(first.categories), notes=[*notes, *split_notes]
    )


def _find_files(root: Path) -> dict[str, Path]:
    """The annotation file of each split."""
    if root.is_file():
        return {"train": root}
    if not root.is_dir():
        raise ValueError(f"no folder {printable(str(root))}: give the folder that holds annotations/ and the images")
    names = [*SPLITS, *ALIASES]
    found: dict[str, Path] = {}
    for pattern in ("annotations/instances_{}*.json", "{}/_annotations.coco.json", "annotations/{}*.json", "{}.json"):
        for word in names:
            paths = sorted(root.glob(pattern.format(word)))
            if len(paths) > 1:
                raise ValueError(f"both {paths[0]} and {paths[1].name} may be the annotations of {word}: keep one")
            if paths:
                found.setdefault(canonical(word), paths[0])
        if found:
            return {split: found[split] for split in SPLITS if split in found}
    others = sorted([*root.glob("annotations/*.json"), *root.glob("*.json")])
    if len(others) == 1:
        return {"train": others[0]}
    raise ValueError(
        f"no annotations in {printable(str(root))}: looked for annotations/instances_train*.json, "
        "train/_annotations.coco.json and annotations/train.json"
    )


@dataclass(frozen=True, eq=False)
class _CocoFile:
    """What one file says."""

    path: Path
    names: tuple[str, ...]  # of the images' files
    ids: tuple[int, ...]
    sizes: np.ndarray  # int64 [images, 2]
    categories: Mapping[int, str]  # by their numbers, in their order
    objects: PackedObjects

    @classmethod
    def read(cls, path: Path, faults: FaultList) -> "_CocoFile":
        content = read_json_object(path, remedy=_REMEDY)
        with content_of(path, remedy=_REMEDY):
            lists = [content.get(key) for key in ("images", "annotations", "categories")]
            images, annotations, categories = (value if isinstance(value, list) else [] for value in lists)
            if not images:
                raise ValueError(f"{path} lists no images: {_REMEDY}")
            if not categories:
                raise ValueError(f"{path} lists no categories: {_REMEDY}")
            named = {
                _whole(_get(row, "id", "a category"), "the id of a category"): str(_get(row, "name", "a category"))
                for row in categories
            }
            ids = [_whole(_get(row, "id", "an image"), "the id of an image") for row in images]
            if len(set(ids)) < len(ids) or len(named) < len(categories):
                raise ValueError(f"{path} has two images or categories of one id")
            sizes = np.array([[int(row.get("height") or 0), int(row.get("width") or 0)] for row in images])
            names = tuple(str(_get(row, "file_name", "an image")) for row in images)
            known = dict(sorted(named.items()))
            rows = _read_rows(path, annotations, ids=ids, sizes=sizes, categories=known, faults=faults)
            return cls(path, names, tuple(ids), sizes, known, PackedObjects(rows))

    def make_set(self, root: Path, *, split: str, name: str, has_masks: bool) -> ObjectFiles:
        """The data set of the images, wherever they lie."""
        folder = self._find_images(root, split=split)
        return ObjectFiles(
            name=name,
            split=split,
            root=root,
            paths=[os.path.relpath(folder / path, root) for path in self.names],
            objects=self.objects,
            has_masks=has_masks,
            ids=self.ids,
            sizes=self.sizes,
        )

    def _find_images(self, root: Path, *, split: str) -> Path:
        word = self.path.stem.removeprefix("instances_")
        own = [root / word, root / "images" / word, root / split, root / "images" / split]
        folders = [*own, root / "images", self.path.parent, self.path.parent / "images", root]
        for folder in folders:
            if any((folder / name).is_file() for name in self.names[:_NUM_TRIED]):
                return folder
        looked = ", ".join(printable(str(folder)) for folder in dict.fromkeys(folders) if folder.is_dir())
        raise ValueError(f"the images of {self.path}, such as {self.names[0]}, are not there: looked in {looked}")

    def note_outlines(self, *, has_masks: bool) -> Iterator[Note]:
        """Note objects without a mask where others have one."""
        num_outlined, num_all = int(self.objects.has_outline.sum()), len(self.objects.labels)
        if not has_masks and num_outlined:
            detail = f"{num_all - num_outlined} of {num_all} objects have a box and no mask: only boxes are used"
            yield Note("objects without mask", str(self.path), detail, is_serious=False)


def _read_rows(
    path: Path,
    annotations: Sequence[Mapping[str, Any]],
    *,
    ids: Sequence[int],
    sizes: np.ndarray,
    categories: Mapping[int, str],
    faults: FaultList,
) -> list[list[ObjectRow]]:
    """The objects of each image; what belongs to no image or category is a fault."""
    places = {number: place for place, number in enumerate(ids)}
    labels = {number: place for place, number in enumerate(categories)}
    rows: list[list[ObjectRow]] = [[] for _ in ids]
    for number, annotation in enumerate(annotations):
        name = f"annotation {annotation.get('id', number) if isinstance(annotation, Mapping) else number}"
        try:
            place, label = places.get(_get(annotation, "image_id")), labels.get(_get(annotation, "category_id"))
            if place is not None and label is not None:
                size = int(sizes[place, 0]), int(sizes[place, 1])
                rows[place].append(
                    _read_row(annotation, label=label, size=size)
                )  # one of a negative size too: where it is only noted, it can be drawn
                _, _, width, height = _read_box(annotation)
                if width < 0 or height < 0:
                    raise ValueError(f"its box has the size {width:g} x {height:g}: write x, y, width, height")
                continue
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            reason = str(error) if isinstance(error, ValueError) else "its values are not those of a COCO file"
            faults.report("faulty annotation", path, f"{name}: {' '.join(reason.split())}")
            continue
        if place is None:
            faults.report("unknown image", path, f"{name} is of the image {annotation['image_id']}, which is not there")
        else:
            detail = f"{name} has the category {annotation['category_id']}, which is not in the list"
            faults.report("unknown category", path, detail)
    return rows


def _read_row(annotation: Mapping[str, Any], *, label: int, size: tuple[int, int]) -> ObjectRow:
    left, top, width, height = _read_box(annotation)
    area = annotation.get("area")
    if not (area is None or _is_number(area)):
        raise ValueError(f"its area is {_show(area)}, which is no number")
    outline = annotation.get("segmentation") or ()
    runs = None
    rings: list[np.ndarray] = []
    if isinstance(outline, dict):
        if [int(side) for side in _get(outline, "size", "its segmentation")] != list(size):
            raise ValueError(f"its mask is {outline['size']}, its image {list(size)} high and wide")
        if size[0] * size[1] > MAX_PIXELS:
            raise ValueError(f"its image has {size[0] * size[1]:,} pixels, more than the limit of {MAX_PIXELS:,}")
        counts = _get(outline, "counts", "its segmentation")
        runs = check_runs(parse_text(counts) if isinstance(counts, (str, bytes)) else counts, size)
    else:
        if not isinstance(outline, (list, tuple)) or not all(_is_ring(ring) for ring in outline):
            raise ValueError("its segmentation is no list of polygons, each a list of numbers x1, y1, x2, y2 ...")
        odd = next((len(ring) for ring in outline if len(ring) % 2), None)
        if odd is not None:
            raise ValueError(f"a polygon has {odd} numbers: they come in pairs")
        rings = [np.array(ring, dtype=np.float64).reshape(-1, 2) for ring in outline if len(ring) >= _MIN_RING]
        if not all(math.isfinite(ring.sum()) for ring in rings):
            raise ValueError("a corner of its polygon is no number")
    return ObjectRow(
        box=(left, top, left + width, top + height),
        label=label,
        rings=rings,
        runs=runs,
        is_crowd=bool(annotation.get("iscrowd", 0)),
        area=None if area is None else float(area),
    )


def _read_box(annotation: Mapping[str, Any]) -> tuple[float, float, float, float]:
    box = _get(annotation, "bbox")
    if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(map(_is_number, box)):
        raise ValueError(f"its bbox is {_show(box)}: write four numbers, x, y, width, height")
    left, top, width, height = map(float, box)
    return left, top, width, height


def _is_ring(ring: object) -> bool:
    return isinstance(ring, (list, tuple)) and all(isinstance(number, (int, float)) for number in ring)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _get(row: object, key: str, what: str = "it") -> Any:
    """What an object of the file has under a key, which must be there."""
    if not isinstance(row, Mapping) or key not in row:
        raise ValueError(f"{what} has no {key}")
    return row[key]


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{what} is {value!r}, not a whole number")
    return value
