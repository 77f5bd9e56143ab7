"""Folders that hold images beside masks or annotations of the same names: they are no classes."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitrail.data.stored import printable

MASK_FOLDERS = ("masks", "annotations", "labels", "annot", "mask")
_IMAGE_FOLDERS = ("images", "img", "imgs", "jpegimages")
_ADDITIONS = ("_mask", "_masks", "_label", "_labels", "_seg", "_gt", "_L")  # behind the image's name
_MOST = 0.5  # share of the images that must have a file of their name in the other folder


def refuse_marked(root: Path, folders: Iterable[str], *, within: str, images: Sequence[str]) -> None:
    """Refuse a folder of images/ and masks/, or their like, in the place of class folders.

    `folders` are those that would be classes, below `within` of the root, and `images` the image files in them.
    """
    found = {folder.lower(): folder for folder in folders}
    of_images = next((found[name] for name in _IMAGE_FOLDERS if name in found), None)
    of_marks = next((found[name] for name in MASK_FOLDERS if name in found), None)
    if len(found) != 2 or of_images is None or of_marks is None:
        return
    start = f"{within}{of_images}/"
    names = {_stem(path[len(start) :]) for path in images if path.startswith(start)}
    place = root / within / of_marks
    files = [Path(folder, name) for folder, _, inside in os.walk(place) for name in inside if not name.startswith(".")]
    marked = {_stem(file.relative_to(place).as_posix()): file.suffix.lower() for file in files}
    common = [name for name in names if name in marked]
    if not names or len(common) < _MOST * len(names):
        return
    is_boxes = marked[common[0]] in (".txt", ".xml", ".json")
    what, task = (
        ("boxes", "task=detect, or the recipe detect_small")
        if is_boxes
        else ("masks", "task=segment, or the recipe segment_small")
    )
    where = printable(str(root / within))
    raise ValueError(
        f"{where} holds {of_images}/ and {of_marks}/ with files of the same names: these are images with {what}, "
        f"not two classes; {task}, learns from them (for classes, give the folders other names)"
    )


def _stem(path: str) -> str:
    stem = os.path.splitext(path)[0]
    return next((stem.removesuffix(addition) for addition in _ADDITIONS if stem.endswith(addition)), stem)
