"""What lies in folders of images: names of splits, folders, and image files at any depth."""

import os
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.sources.folder import EXTENSIONS
from vitrail.data.sources.folder import IGNORED as LEFT_BEHIND
from vitrail.data.splits import ALIASES, SPLITS, canonical, in_order


def list_folders(root: Path) -> set[str]:
    """The names of the folders right below one; none where it is not there."""
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}
    except OSError:
        return set()


def splits_in(root: Path) -> dict[str, str]:
    """Split -> its folder right below one."""
    found: dict[str, str] = {}
    for folder in sorted(list_folders(root)):
        if folder.lower() in (*SPLITS, *ALIASES):
            if canonical(folder) in found:
                raise ValueError(f"the folders {found[canonical(folder)]} and {folder} in {root} mean one split")
            found[canonical(folder)] = folder
    return {split: found[split] for split in in_order(found)}


def list_images(root: Path, endings: tuple[str, ...] = EXTENSIONS) -> list[str]:
    """Files of these endings at any depth, relative to the root, sorted."""
    return sorted(_walk(root, endings))


def _walk(root: Path, endings: tuple[str, ...]) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name.lower() not in LEFT_BEHIND]
        inside = os.path.relpath(folder, root)
        for name in files:
            if name.lower().endswith(endings) and not name.startswith("."):
                yield name if inside == "." else f"{inside}/{name}".replace(os.sep, "/")
