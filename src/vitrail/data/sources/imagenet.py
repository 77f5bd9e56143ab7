"""ImageNet-1k and 21k, and two other ways to evaluate: ImageNet-V2 (Recht et al. 2019) and ReaL (Beyer et al. 2020)."""

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.sources.folder import open_folder
from vitrail.data.sources.official import ReportedSource, first_line, hold_out
from vitrail.data.stored import FileDataset, OpenedSource
from vitrail.storage import read_json

NUM_VALIDATION_IMAGES = 50_000
_ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
_DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_VALIDATION_FILE = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
_WNID = re.compile(r"n\d{8}")
_EXTENSIONS = (".jpeg", ".jpg", ".png")
_VERSION_2_FOLDER = "imagenetv2-matched-frequency-format-val"  # as its archive unpacks


def open_imagenet(root: Path, *, download: bool = False, val_share: float = 0.1, seed: int = 0) -> Source:
    """ImageNet-1k: `train/<wnid>/` and `val/<wnid>/` in `root`, always with all 1,000 classes in their usual order.

    The images of val may also lie side by side, as they are published, if the development kit is there. ImageNet can't
    be downloaded without an account: with `download`, the published archives in `root` are unpacked by torchvision.
    """
    if download:
        _unpack(root)
    found = {split: root / split for split in ("train", "val") if (root / split).is_dir()}
    if not found:
        raise ValueError(f"imagenet is not in {root}: {_how_to_get(root)}")
    notes: list[Note] = []
    parts: list[Dataset] = []
    for split, folder in found.items():
        images = _read_validation(root) if split == "val" else _read_class_folders(folder, _indices_of_wnids())
        notes += images.notes
        if not images.paths:
            raise ValueError(f"{folder} holds no class folders with images, such as n01440764: {_how_to_get(root)}")
        if images.labels is None:
            raise ValueError(
                f"{folder} holds no class folders: sort its images into <wnid> folders, or put {_DEVKIT} into {root}"
            )
        notes += _note_missing_classes(split, images.labels)
        parts.append(_dataset("imagenet", folder, images.paths, {"label": Level(class_names(), images.labels)}, split))
    if "val" not in found:
        train = parts[0]
        assert isinstance(train, FileDataset)
        parts, more = hold_out(train, train.paths, share=val_share, seed=seed)
        notes += more
    return OpenedSource(parts, notes=notes)


def open_imagenet21k(root: Path, *, val_share: float = 0.1, seed: int = 0) -> Source:
    """ImageNet-21k: `<wnid>/` in `root`, or in `train/` and `val/` there; its classes are the ids with images, sorted.

    The release of 2011 has 21,841 classes, that of 2021 19,167; neither has a val. Where there is no folder `val`, a
    `val_share` of each class is set aside, chosen by `seed` and a hash of the file's name, and a note says so: DeiT III
    was measured on a val of the authors' own, which is not published.
    """
    if not root.is_dir():
        raise ValueError(f"imagenet21k is not in {root}: unpack the archive of each class there, into <wnid>/")
    source = open_folder(root, name="imagenet21k", val_share=val_share, seed=seed)
    others = [name for name in source.open(source.splits[0]).level().classes if not _WNID.fullmatch(name)]
    if others:
        raise ValueError(
            f"{root}: the folders of imagenet21k are WordNet ids such as n01440764, and {others[0]} is none"
        )
    return source


def open_imagenet_v2(root: Path) -> Source:
    """ImageNet-V2: folders `0` ... `999` in `root`, each the number of a class. There is only val (or `test`)."""
    folder = root / _VERSION_2_FOLDER if (root / _VERSION_2_FOLDER).is_dir() else root
    indices = {str(index): index for index in range(len(class_names()))}
    images = _read_class_folders(folder, indices) if folder.is_dir() else _Images([], None, [])
    if images.labels is None:
        raise ValueError(
            f"imagenet_v2 is not in {root}: unpack imagenetv2-matched-frequency.tar.gz "
            "(https://huggingface.co/datasets/vaishaal/ImageNetV2) there"
        )
    notes = [*images.notes, *_note_missing_classes("val", images.labels)]
    levels = {"label": Level(class_names(), images.labels)}
    return ReportedSource([_dataset("imagenet_v2", folder, images.paths, levels, "val")], notes=notes)


def open_imagenet_real(root: Path, *, download: bool = False) -> Source:
    """ImageNet's val with the reassessed labels of `real.json`: an image may have several, or none.

    An image without any valid label stays, with an empty row: the evaluation leaves it out. The second level,
    `original`, holds ImageNet's own labels where they are known.
    """
    if download:
        _unpack(root)
    listing = root / "real.json"
    if not (root / "val").is_dir():
        raise ValueError(f"imagenet_real needs the val folder of imagenet in {root}: {_how_to_get(root)}")
    valid = _read_real(listing)
    images = _read_validation(root)
    if not images.paths:
        raise ValueError(f"{root / 'val'} holds no images: {_how_to_get(root)}")
    labels = np.zeros((len(images.paths), len(class_names())), dtype=bool)
    for row, path in enumerate(images.paths):
        labels[row, valid[_validation_number(path) - 1]] = True
    levels = {"label": Level(class_names(), labels)}
    if images.labels is not None:
        levels["original"] = Level(class_names(), images.labels)
    return ReportedSource([_dataset("imagenet_real", root / "val", images.paths, levels, "val")], notes=images.notes)


@functools.cache
def class_names() -> tuple[str, ...]:
    """The 1,000 WordNet ids in the order that all weights use."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo().label_names())


@dataclass(frozen=True)
class _Images:
    """What lies in a folder."""

    paths: list[str]  # relative to it
    labels: np.ndarray | None  # None: they are not known
    notes: list[Note]


def _dataset(name: str, folder: Path, paths: list[str], levels: Mapping[str, Level], split: str) -> Dataset:
    return FileDataset(name=name, split=split, root=folder, paths=paths, levels=levels)


def _indices_of_wnids() -> dict[str, int]:
    return {name: index for index, name in enumerate(class_names())}


def _read_class_folders(folder: Path, indices: Mapping[str, int]) -> _Images:
    """The images of the class folders, by class and then by name."""
    notes: list[Note] = []
    names: dict[int, str] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and entry.name in indices:
            names[indices[entry.name]] = entry.name
        elif entry.is_dir():
            detail = "no ImageNet class has this name: rename the folder or take it away; it is left out"
            notes.append(Note("unknown class", entry.path, detail, is_serious=True))
    paths: list[str] = []
    labels: list[int] = []
    for index, name in sorted(names.items()):
        files = sorted(file for file in os.listdir(folder / name) if file.lower().endswith(_EXTENSIONS))
        paths += [f"{name}/{file}" for file in files]
        labels += [index] * len(files)
    return _Images(paths, np.array(labels, dtype=np.int64) if paths else None, notes)


def _read_validation(root: Path) -> _Images:
    """The images of val: in class folders, or side by side as they are published."""
    images = _read_class_folders(root / "val", _indices_of_wnids())
    flat = sorted(name for name in os.listdir(root / "val") if _VALIDATION_FILE.fullmatch(name))
    if images.paths or not flat:
        return images
    wnids = _wnids_of_validation(root)
    if wnids is None:
        return _Images(flat, None, [])
    indices = _indices_of_wnids()
    labels = np.array([indices[wnids[_validation_number(name) - 1]] for name in flat], dtype=np.int64)
    return _Images(flat, labels, [])


def _validation_number(path: str) -> int:
    """The number in ILSVRC2012_val_00000001.JPEG."""
    match = _VALIDATION_FILE.fullmatch(path.rpartition("/")[2])
    number = int(match[1]) if match else 0
    if not 1 <= number <= NUM_VALIDATION_IMAGES:
        raise ValueError(f"val/{path} is not called ILSVRC2012_val_00000001.JPEG ... ILSVRC2012_val_00050000.JPEG")
    return number


def _wnids_of_validation(root: Path) -> list[str] | None:
    """The class of every image of val, from torchvision's `meta.bin` or the development kit it is made of."""
    from torchvision.datasets.imagenet import load_meta_file, parse_devkit_archive

    if not (root / "meta.bin").is_file() and not (root / _DEVKIT).is_file():
        return None
    try:
        if not (root / "meta.bin").is_file():
            parse_devkit_archive(root)
        wnids: list[str] = load_meta_file(root)[1]
    except (RuntimeError, OSError, ImportError) as error:
        raise _unpacking_failed(root, error) from error
    if len(wnids) != NUM_VALIDATION_IMAGES:
        raise ValueError(f"{root / 'meta.bin'} lists {len(wnids)} images, not {NUM_VALIDATION_IMAGES}: delete it")
    return wnids


def _unpack(root: Path) -> None:
    """Unpack the published archives whose folder is not there yet."""
    from torchvision.datasets import ImageNet

    for split, archive in _ARCHIVES.items():
        if (root / split).is_dir() or not (root / archive).is_file():
            continue
        try:
            ImageNet(root, split=split)
        except (RuntimeError, OSError, ImportError) as error:
            raise _unpacking_failed(root, error) from error


def _unpacking_failed(root: Path, error: Exception) -> ValueError:
    if isinstance(error, ImportError):
        return ValueError(
            "ImageNet's development kit is a MATLAB file, which scipy reads: pip install 'vitrail[scipy]'"
        )
    return ValueError(f"ImageNet's archives in {root} could not be unpacked: {first_line(error)}")


def _how_to_get(root: Path) -> str:
    archives = [name for name in _ARCHIVES.values() if (root / name).is_file()]
    if archives:
        return f"{' and '.join(archives)} must be unpacked, which download=True (--download) does"
    names = ", ".join((*_ARCHIVES.values(), _DEVKIT))
    return (
        "it needs folders train/<wnid> and val/<wnid>; or get an account at image-net.org, put "
        f"{names} there and open it with download=True (--download), which unpacks them"
    )


def _note_missing_classes(split: str, labels: np.ndarray) -> list[Note]:
    counts = np.bincount(labels, minlength=len(class_names()))
    missing = [name for name, count in zip(class_names(), counts, strict=True) if count == 0]
    if not missing:
        return []
    some = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
    detail = f"{len(missing)} of {len(class_names())} classes have no images here: {some}"
    return [Note("class missing", split, detail, is_serious=False)]


def _read_real(listing: Path) -> list[list[int]]:
    """The valid labels of every image of val."""
    if not listing.is_file():
        raise ValueError(
            f"{listing} is missing: put real.json of https://github.com/google-research/reassessed-imagenet there"
        )
    valid = read_json(listing, remedy="get it anew")
    if not isinstance(valid, list) or len(valid) != NUM_VALIDATION_IMAGES:
        count = f"a list of {len(valid)}" if isinstance(valid, list) else "no list"
        raise ValueError(f"{listing} must be a list of {NUM_VALIDATION_IMAGES} lists of labels, and is {count}")
    allowed = set(range(len(class_names())))
    for number, labels in enumerate(valid, start=1):
        if not isinstance(labels, list) or not all(type(label) is int and label in allowed for label in labels):
            raise ValueError(f"{listing}: entry {number} must be a list of labels from 0 to 999, and is {labels!r:.60}")
    return valid
