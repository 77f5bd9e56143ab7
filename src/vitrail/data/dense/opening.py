"""The door to images with masks and with objects: a text that says which, and the tables of kinds that it may name."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np

from vitrail.data.dense.contract import DetectionData, SegmentationData
from vitrail.data.dense.dense_sources import DenseOpening, DenseSource, DetectionSource, SegmentationSource, SomeSet
from vitrail.data.dense.mask_pairs import find_pair_folders, has_masks
from vitrail.data.exclusion import find_kept
from vitrail.data.sources.named import default_root
from vitrail.data.sources.names import NAMED
from vitrail.data.splits import AUTOMATIC, canonical
from vitrail.settings.data import DataSettings
from vitrail.settings.own import is_own, load_own, working_directory_on_path

# What a person has marked in images: classes of whole ones, masks of their pixels, boxes of objects, or nothing.
MarkedBy = Literal["classes", "masks", "boxes", "none"]
AnySource = TypeVar("AnySource", SegmentationSource, DetectionSource)


def open_segmentation(settings: DataSettings) -> SegmentationData:
    """Images with masks to train and to evaluate on, without the samples in quarantine."""
    source = open_segmentation_source(*_first(settings))
    train, val, is_held_out = _open_both(settings, source, open_segmentation_source)
    return SegmentationData(
        train=train,
        val=val,
        classes=source.classes,
        colours=source.colours,
        is_held_out=is_held_out,
        notes=source.notes,
    )


def open_detection(settings: DataSettings) -> DetectionData:
    """Images with objects to train and to evaluate on, without the samples in quarantine."""
    source = open_detection_source(*_first(settings))
    train, val, is_held_out = _open_both(settings, source, open_detection_source)
    return DetectionData(
        train=train,
        val=val,
        classes=source.classes,
        has_masks=source.has_masks,
        category_ids=source.category_ids,
        is_held_out=is_held_out,
        notes=source.notes,
    )


def open_segmentation_source(spec: str, opening: DenseOpening | None = None) -> SegmentationSource:
    """Images with masks by name or place, with all splits.

    `spec` is NAME:ROOT with a name of `SEGMENTATION_KINDS`, a folder with images/ and masks/, `shapes` with or without
    its settings, or `module:function` of one's own, which returns a `SegmentationSource`.
    """
    return _open_source(spec, opening or DenseOpening(), SEGMENTATION_KINDS, SegmentationSource, _open_plain_masks)


def open_detection_source(spec: str, opening: DenseOpening | None = None) -> DetectionSource:
    """Images with objects by name or place, with all splits.

    `spec` is NAME:ROOT with a name of `DETECTION_KINDS`, `shapes` with or without its settings, a folder that looks
    like one of these, or `module:function` of one's own, which returns a `DetectionSource`.
    """
    return _open_source(spec, opening or DenseOpening(), DETECTION_KINDS, DetectionSource, _open_plain_objects)


def guess_marks(spec: str) -> MarkedBy:
    """Whether data has labels of whole images, masks or objects, by its name or by what lies in its folder."""
    name, _, _ = spec.partition(":")
    is_masked, is_boxed = name in SEGMENTATION_KINDS, name in DETECTION_KINDS
    if name != "shapes" and (is_masked or is_boxed):
        if is_masked and is_boxed:
            raise ValueError(f"{name} has masks and boxes: say which is meant, --labels masks or --labels boxes")
        return "masks" if is_masked else "boxes"
    root = Path(spec).expanduser()
    if not root.is_dir():
        return "classes"
    if has_masks(root) or any(
        (root / pair.masks).name in ("masks", "mask") for pair in find_pair_folders(root).values()
    ):
        return "masks"  # also where masks/ is empty: the check says what is missing
    has_coco = any(root.glob("annotations/*.json")) or any(root.glob("*/_annotations.coco.json"))
    has_yolo = any((root / name).exists() for name in ("data.yaml", "data.yml")) or any(
        next((root / folder).rglob("*.txt"), None) is not None for folder in ("labels", "train/labels")
    )
    return "boxes" if has_coco or has_yolo else "classes"


def open_dense_split(source: DenseSource[SomeSet], split: str, *, exclude: str | Path | None = None) -> SomeSet:
    """One split of a source, by any of its names, without the samples that `exclude` lists."""
    known = {canonical(name): name for name in source.splits}
    if canonical(split) not in known:
        raise ValueError(f"{source.name} has no split {split!r}; it has: {', '.join(source.splits)}")
    dataset = source.open(known[canonical(split)])
    kept = None if exclude is None else find_kept(dataset, exclude, source=source)
    return dataset if kept is None else source.pick(dataset, kept)


def _first(settings: DataSettings) -> tuple[str, DenseOpening]:
    """The training data's name, and how it is opened."""
    if settings.spec is None:
        raise ValueError("no data given: add data=NAME:FOLDER, or data=shapes")
    for name in ("level", "balanced"):
        if getattr(settings, name):
            raise ValueError(f"data.{name} is for labels of whole images: leave it out here")
    return settings.spec, DenseOpening(val_share=settings.val_share if _has_own_val(settings) else 0.0)


def _has_own_val(settings: DataSettings) -> bool:
    """Whether the training data's val is what is evaluated on."""
    return settings.val in (None, settings.spec)


def _open_both(
    settings: DataSettings,
    source: DenseSource[SomeSet],
    open_other: Callable[[str, DenseOpening], DenseSource[SomeSet]],
) -> tuple[SomeSet, SomeSet, bool]:
    """Train and val, and whether one was taken from the other."""
    train = open_dense_split(source, "train", exclude=settings.quarantine)
    if not settings.is_measured:
        return train, source.pick(train, np.zeros(0, dtype=np.int64), split="val"), False
    if _has_own_val(settings):
        val = open_dense_split(source, "val", exclude=settings.quarantine)
        return train, val, any(note.problem == AUTOMATIC for note in source.notes)
    assert settings.val is not None
    other = open_other(settings.val, DenseOpening(val_share=0.0))
    if other.classes != source.classes:
        raise ValueError(
            f"the classes of {other.name} ({settings.val}) are not those of {source.name}: they must be the same"
        )
    return train, open_dense_split(other, "val" if len(other.splits) > 1 else other.splits[0]), False


def _open_source(
    spec: str,
    opening: DenseOpening,
    kinds: Mapping[str, Callable[[str, str, DenseOpening], AnySource]],
    kind: type[AnySource],
    open_plain: Callable[[Path, DenseOpening], AnySource],
) -> AnySource:
    if not spec.strip():
        raise ValueError("the data is named by an empty text: give NAME:FOLDER, or shapes")
    name, _, rest = spec.partition(":")
    if name in kinds:
        return kinds[name](name, rest, opening)
    if is_own(spec) and not os.path.lexists(spec):
        with working_directory_on_path():
            made = load_own(spec, what="data")()
        if not isinstance(made, kind):
            raise ValueError(f"the data {spec} must be a {kind.__name__}, not {type(made).__name__}")
        return made
    path = Path(spec).expanduser()
    if path.exists():
        return open_plain(path, opening)
    there_are = f"there are: {', '.join(known if known == 'shapes' else f'{known}:FOLDER' for known in kinds)}"
    if other := _say_what_it_has(name):
        raise ValueError(f"{other}; for this recipe {there_are}")
    raise ValueError(f"no folder {spec!r}, and no data of that name; {there_are}")


def _say_what_it_has(name: str) -> str | None:
    """What data that another kind of recipe learns has; None where no data is called so."""
    if name in DETECTION_KINDS:
        return f"{name} has objects in boxes: recipes for detection learn it, such as detect_small_photos"
    if name in SEGMENTATION_KINDS:
        return f"{name} has masks: recipes for segmentation learn it, such as segment_small"
    if name in (*NAMED, "fashion"):
        return f"{name} has labels of whole images: recipes for classification learn it, such as fine_tune"
    return None


def _root(name: str, rest: str) -> Path:
    return Path(rest).expanduser() if rest else default_root() / name


def _name_of(root: Path) -> str:
    """What data in a folder, or of a file in it, is called."""
    place = root.resolve()
    return f"{place.parent.name}-{place.stem}" if place.is_file() else place.name or str(place)


def _open_shapes_masks(name: str, rest: str, opening: DenseOpening) -> SegmentationSource:
    from vitrail.data.dense.drawn_shapes import open_shapes_masks

    return open_shapes_masks(rest)


def _open_shapes_objects(name: str, rest: str, opening: DenseOpening) -> DetectionSource:
    from vitrail.data.dense.drawn_shapes import open_shapes_objects

    return open_shapes_objects(rest)


def _open_masks(name: str, rest: str, opening: DenseOpening) -> SegmentationSource:
    from vitrail.data.dense import published_masks

    return published_masks.OPENERS[name](_root(name, rest), name=name, opening=opening)


def _open_pairs(name: str, rest: str, opening: DenseOpening) -> SegmentationSource:
    from vitrail.data.dense.mask_folders import open_pairs

    if not rest:
        raise ValueError("pairs need the folder that holds images/ and masks/: pairs:FOLDER")
    return open_pairs(Path(rest).expanduser(), opening=opening)


def _open_plain_masks(path: Path, opening: DenseOpening) -> SegmentationSource:
    return _open_pairs("pairs", str(path), opening)


def _open_coco(name: str, rest: str, opening: DenseOpening) -> DetectionSource:
    from vitrail.data.dense.coco_objects import open_coco

    root = _root(name, rest)
    return open_coco(root, name=_name_of(root) if rest else name, opening=opening)


def _open_yolo(name: str, rest: str, opening: DenseOpening) -> DetectionSource:
    from vitrail.data.dense.yolo_objects import open_yolo

    if not rest:
        raise ValueError("yolo needs the folder that holds data.yaml or classes.txt: yolo:FOLDER")
    root = Path(rest).expanduser()
    return open_yolo(root, name=_name_of(root.parent if root.is_file() else root), opening=opening)


def _open_voc_objects(name: str, rest: str, opening: DenseOpening) -> DetectionSource:
    from vitrail.data.dense.voc_objects import open_voc_objects

    return open_voc_objects(_root(name, rest), name=name, opening=opening)


def _open_plain_objects(path: Path, opening: DenseOpening) -> DetectionSource:
    """Whichever kind a folder or a file looks like."""
    from vitrail.data.dense.yolo_objects import YOLO_TABLES

    if path.suffix == ".json" or any(path.glob("**/*.json")):
        kind = "coco"
    elif path.suffix in (".yaml", ".yml") or any((path / table).exists() for table in YOLO_TABLES):
        kind = "yolo"
    elif any(path.glob("**/*.xml")):
        kind = "voc"
    else:
        raise ValueError(
            f"{path} has no annotations of objects: looked for COCO's JSON, YOLO's data.yaml or classes.txt, VOC's XML"
        )
    return DETECTION_KINDS[kind](kind, str(path), opening)


# What may stand before the colon -> what opens it, given the name, the text after the colon and the settings.
SEGMENTATION_KINDS: Mapping[str, Callable[[str, str, DenseOpening], SegmentationSource]] = MappingProxyType(
    {
        "pairs": _open_pairs,
        **dict.fromkeys(("camvid", "ade20k", "cityscapes", "voc"), _open_masks),
        "shapes": _open_shapes_masks,
    }
)
DETECTION_KINDS: Mapping[str, Callable[[str, str, DenseOpening], DetectionSource]] = MappingProxyType(
    {"coco": _open_coco, "yolo": _open_yolo, "voc": _open_voc_objects, "shapes": _open_shapes_objects}
)
