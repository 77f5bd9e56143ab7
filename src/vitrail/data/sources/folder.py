"""A folder of class folders or of images without labels, or of train, val and test folders that hold them."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.contract import Dataset, Labels, Level, Note, Source
from vitrail.data.remote.remote_images import RemoteFolder
from vitrail.data.sources.class_names import note_alike, note_missing
from vitrail.data.sources.marked_folders import refuse_marked
from vitrail.data.splits import SPLITS, canonical, complete, in_order
from vitrail.data.stored import FileDataset, OpenedSource, printable

EXTENSIONS = (
    *(
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".mpo",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".jp2",
    ),
    *(".avif", ".heic", ".heif"),  # some may need an extra: that is then said of each
)
# What operating systems and file servers leave behind.
IGNORED = frozenset({"__macosx", "thumbs.db", "desktop.ini", "@eadir"})


def open_folder(
    root: Path | RemoteFolder, *, name: str, val_share: float = 0.1, seed: int = 0, labels: Labels = "required"
) -> Source:
    """The images below a folder: one class per folder, and images at any depth inside it.

    Classes are one list for all splits: the names of the folders that hold images in any split, in plain string order
    (so "10" precedes "9", and "Z" precedes "a"). Samples are in the order of their classes, then of their paths.
    Hidden files and folders are passed over; links are followed, but no folder is read twice for one class.

    Where labels are optional, images without class folders have none. Where they are ignored, folders but those of
    splits mean nothing, and all images below count.
    """
    top = _list(root)
    folders = _split_folders(root, top)
    if labels == "ignored" or (labels == "optional" and not _has_classes(root, top, folders)):
        return _open_unlabelled(root, name, top, folders=folders, val_share=val_share, seed=seed)
    notes: list[Note] = []
    found: dict[str, dict[str, _Class]] = {}  # split -> class -> what it holds
    if not folders:
        notes += _note_stray_images(".", top)
        notes += _note_split_like([folder for folder in top.folders if canonical(folder) in SPLITS])
        found["train"] = _read_classes(root, "", top, notes=notes)
    for split, folder in folders.items():
        listing = _list(root / folder)
        if split == "test" and len(folders) > 1 and listing.images and not listing.folders:
            detail = f"no class folders in it, only images ({len(listing.images)}): it was left out"
            notes.append(Note("no classes", folder, detail, is_serious=False))
            continue
        notes += _note_stray_images(folder, listing)
        found[split] = _read_classes(root, f"{folder}/", listing, notes=notes)
    if folders:
        notes += _note_stray_images(".", top)
        notes += [_note_stray_folder(folder) for folder in top.folders if folder not in folders.values()]
    if isinstance(root, Path):
        for split, classes in found.items():
            images = [image for held in classes.values() for image in held.images]
            refuse_marked(root, classes, within=f"{folders[split]}/" if folders else "", images=images)
    return _assemble(root, name, found, folders=folders, notes=notes, val_share=val_share, seed=seed)


def _has_classes(root: Path | RemoteFolder, top: "_Listing", folders: Mapping[str, str]) -> bool:
    """Whether there is a folder that a class may be, in the data folder or in one of a split."""
    return any(_list(root / folder).folders for folder in folders.values()) if folders else bool(top.folders)


def _open_unlabelled(
    root: Path | RemoteFolder, name: str, top: "_Listing", *, folders: Mapping[str, str], val_share: float, seed: int
) -> Source:
    """All images of each split, at any depth, without labels."""
    notes: list[Note] = []
    found: dict[str, dict[str, _Class]] = {}
    prefixes = {split: f"{folder}/" for split, folder in folders.items()} or {"train": ""}
    for split, prefix in prefixes.items():
        listing = _list(root / prefix) if prefix else top
        outside = {_identity(root), _identity(root / prefix)}
        found[split] = {"": _Class([prefix + image for image in listing.images], bool(listing.folders))}
        notes += _note_others(prefix.rstrip("/") or ".", [prefix + other for other in listing.others])
        for folder in listing.folders:
            found[split][folder] = _read_class(root, prefix + folder, outside=outside, notes=notes)
    if folders:
        notes += _note_stray_images(".", top)
        notes += [_note_stray_folder(folder) for folder in top.folders if folder not in folders.values()]
    return _assemble(root, name, found, folders=folders, notes=notes, val_share=val_share, seed=seed, is_labelled=False)


@dataclass(frozen=True)
class _Listing:
    """What lies directly in a folder, sorted, without what is hidden."""

    folders: list[str]
    images: list[str]
    others: list[str]


@dataclass(frozen=True)
class _Class:
    """What one class folder holds, at any depth."""

    images: list[str]  # relative to the root, sorted
    has_folders: bool


def _list(folder: Path | RemoteFolder) -> _Listing:
    folders: list[str] = []
    images: list[str] = []
    others: list[str] = []
    if isinstance(folder, RemoteFolder):
        inner, names = folder.names()
        folders = [name for name in inner if not _is_ignored(name)]
        for name in (name for name in names if not _is_ignored(name)):
            (images if name.lower().endswith(EXTENSIONS) else others).append(name)
        return _Listing(sorted(folders), sorted(images), sorted(others))
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if _is_ignored(name):
                    continue
                if _is_folder(entry):
                    folders.append(name)
                elif name.lower().endswith(EXTENSIONS) and _is_file(entry):
                    images.append(name)
                else:
                    others.append(name)
    except FileNotFoundError:
        raise ValueError(f"no folder {printable(str(folder))}") from None
    except NotADirectoryError:
        raise ValueError(f"{printable(str(folder))} is a file, not a folder of class folders") from None
    except OSError as error:
        raise ValueError(f"cannot read the folder {printable(str(folder))}: {error.strerror}") from None
    return _Listing(sorted(folders), sorted(images), sorted(others))


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a plain file or leads to one: a pipe would be waited for without end.

    A link that leads nowhere counts too: that the image can't be read is then found and said.
    """
    if not entry.is_symlink():
        return entry.is_file()
    try:
        return stat.S_ISREG(entry.stat().st_mode)
    except OSError:
        return True


def _split_folders(root: Path | RemoteFolder, top: _Listing) -> dict[str, str]:
    """Split -> its folder; empty where the folders are classes.

    A class may be called "train" (there are cars, ships and trains): beside folders of other names, the names of splits
    count only if train holds folders.
    """
    alike = {split: [folder for folder in top.folders if canonical(folder) == split] for split in SPLITS}
    are_all = sum(map(len, alike.values())) == len(top.folders)
    if not are_all and not any(_list(root / folder).folders for folder in alike["train"]):
        return {}
    for split, folders in alike.items():
        if len(folders) > 1:
            raise ValueError(
                f"the folders {' and '.join(folders)} in {printable(str(root))} all mean {split}: keep one of them"
            )
    return {split: folders[0] for split, folders in alike.items() if folders}


def _read_classes(root: Path | RemoteFolder, prefix: str, listing: _Listing, *, notes: list[Note]) -> dict[str, _Class]:
    """Every class folder of one split; `prefix` is the path of the split below the root."""
    if not listing.folders:
        where = printable(str(root / prefix))
        if not listing.images:
            raise ValueError(f"no images below {where}: looked for {', '.join(EXTENSIONS)}")
        raise ValueError(
            f"found {len(listing.images)} images but no class folders in {where}: "
            "put each class in a folder of its own, or write a manifest"
        )
    outside = {_identity(root), _identity(root / prefix)}
    return {folder: _read_class(root, prefix + folder, outside=outside, notes=notes) for folder in listing.folders}


def _read_class(root: Path | RemoteFolder, start: str, *, outside: set[tuple[int, int]], notes: list[Note]) -> _Class:
    """The images of one class folder and of the folders in it.

    `outside` identifies folders that contain this one: a link to them is a loop.
    """
    images: list[str] = []
    others: list[str] = []
    has_folders = False
    seen = set(outside)
    waiting = [start]
    while waiting:
        folder = waiting.pop()
        identity = _identity(root / folder)
        if identity in seen:
            detail = "a link to a folder that is already read for this class, or that holds it: it was not followed"
            notes.append(Note("repeated folder", printable(folder), detail, is_serious=False))
            continue
        seen.add(identity)
        listing = _list(root / folder)
        images += [f"{folder}/{name}" for name in listing.images]
        others += [f"{folder}/{name}" for name in listing.others]
        waiting += [f"{folder}/{name}" for name in reversed(listing.folders)]
        has_folders = has_folders or bool(listing.folders)
    notes += _note_others(start, others)
    return _Class(sorted(images), has_folders)


def _note_others(folder: str, others: list[str]) -> list[Note]:
    if not others:
        return []
    detail = f"not image files, and passed over: {len(others)}, such as {printable(others[0])}"
    return [Note("other files", printable(folder), detail, is_serious=False)]


def _identity(folder: Path | RemoteFolder) -> tuple[int, int]:
    if isinstance(folder, RemoteFolder):  # of which each has one name
        return -1, hash(str(folder))
    try:
        status = os.stat(folder)
    except OSError as error:
        raise ValueError(f"cannot read the folder {printable(str(folder))}: {error.strerror}") from None
    return status.st_dev, status.st_ino


def _assemble(
    root: Path | RemoteFolder,
    name: str,
    found: Mapping[str, Mapping[str, _Class]],
    *,
    folders: Mapping[str, str],
    notes: list[Note],
    val_share: float,
    seed: int,
    is_labelled: bool = True,
) -> Source:
    """One list of classes, the labels if there are any, and the splits of all that was found."""
    present = {split: [folder for folder, held in classes.items() if held.images] for split, classes in found.items()}
    classes = sorted(set().union(*present.values()))
    if not classes:
        raise ValueError(f"no images below {printable(str(root))}: looked for {', '.join(EXTENSIONS)}")
    prefixes = {split: f"{folders[split]}/" if folders else "" for split in found}
    paths: list[str] = []
    names: list[str] = []  # relative to the folder of class folders: `data` and `data/train` are split alike
    splits: list[str] = []
    labels: list[int] = []
    index = {folder: place for place, folder in enumerate(classes)}
    for split in found:
        for folder in present[split]:
            images = found[split][folder].images
            paths += images
            names += [path[len(prefixes[split]) :] for path in images]
            splits += [split] * len(images)
            labels += [index[folder]] * len(images)
    all_labels = np.array(labels, dtype=np.int64)
    all_splits, split_notes = complete(
        np.array(splits) if folders else None,
        names=names,
        labels=all_labels if is_labelled else None,
        share=val_share,
        seed=seed,
    )
    shown = tuple(map(printable, classes))
    places = {split: f"{prefix}{{}}" for split, prefix in prefixes.items()}
    if is_labelled:
        notes += note_missing({split: list(map(printable, held)) for split, held in present.items()}, places=places)
        notes += note_alike(shown)
        notes += _note_empty(found, classes, prefixes=prefixes)
    if is_labelled and len(classes) == 1:
        notes.append(_note_single(classes[0], found))
    notes += split_notes
    datasets: list[Dataset] = []
    for split in in_order(all_splits.tolist()):
        chosen = np.flatnonzero(all_splits == split)
        levels = {"label": Level(classes=shown, labels=all_labels[chosen])} if is_labelled else {}
        files = [paths[place] for place in chosen]
        if isinstance(root, RemoteFolder):
            datasets.append(root.images(name=name, split=split, paths=files, levels=levels))
        else:
            datasets.append(FileDataset(name=name, split=split, root=root, paths=files, levels=levels))
    return OpenedSource(datasets, notes=notes)


def _note_empty(
    found: Mapping[str, Mapping[str, _Class]], classes: list[str], *, prefixes: Mapping[str, str]
) -> list[Note]:
    """Note folders without images. Copying often loses empty folders, so one must never count as a class."""
    known = set(classes)
    return [
        Note(
            "empty class",
            printable(prefixes[split] + folder),
            "no images in it" if folder in known else "no images in it: not counted as a class",
            is_serious=False,
        )
        for split, held in found.items()
        for folder in held
        if not held[folder].images
    ]


def _note_single(folder: str, found: Mapping[str, Mapping[str, _Class]]) -> Note:
    detail = "all images are of one class"
    has_folders = any(held[folder].has_folders for held in found.values() if folder in held)
    if has_folders:
        detail += f"; it holds folders: if those are the classes, open the folder {printable(folder)!r} instead"
    return Note("single class", printable(folder), detail, is_serious=has_folders)


def _note_stray_images(place: str, listing: _Listing) -> list[Note]:
    if not listing.images or not listing.folders:
        return []
    example = printable(listing.images[0])
    detail = f"images beside the class folders, and passed over: {len(listing.images)}, such as {example}"
    return [Note("stray images", place, detail, is_serious=False)]


def _note_stray_folder(folder: str) -> Note:
    detail = "a folder beside those of the splits: it was not read"
    return Note("stray folder", printable(folder), detail, is_serious=False)


def _note_split_like(folders: list[str]) -> list[Note]:
    """Note class folders that are called as splits are: one may be a class "train", but hardly with a "test"."""
    detail = "named like a split, but counted as a class: for splits, put class folders into train and val"
    return [Note("class named like a split", folder, detail, is_serious=len(folders) > 1) for folder in folders]
