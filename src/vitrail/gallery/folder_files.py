"""The folder of a gallery: readers see one whole state of it, and writers take turns.

New files are written beside the old ones. The state changes at the moment when a new manifest takes the place of the
old one, so that a kill in the middle leaves the old state, and files that nobody lists: the next writer removes them.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitrail.gallery.gallery_damage import damage
from vitrail.gallery.gallery_manifest import MANIFEST_FILE, Manifest, read_manifest, write_manifest
from vitrail.gallery.part_files import StoredPart, read_part
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.storage import locked, sync

LOCK_FILE = ".lock"
MOVE_FILE = "moving.json"  # how far a gallery has come from another place
NOTE_FILES = ("suggestions.json", "suggestions.html", "report.html")  # beside the gallery's own
# What a writer leaves, killed ones too: safetensors writes under a name such as .tmp75EbN2 first.
_OURS = re.compile(
    r"part-\w+\.safetensors|index-\w+\.faiss|\.(gallery|moving)\.json\.\w+\.partial|\.tmp\w{6}|\.lock|moving\.json"
)
_ATTEMPTS = 100  # at a state that other processes replace while it is read


@dataclass(frozen=True, eq=False)
class State:
    """What is in a gallery at one moment."""

    folder: Path
    manifest: Manifest
    parts: tuple[StoredPart, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def is_replaced(self) -> bool:
        """Whether the gallery has another state by now, so that files of this one may be gone."""
        return read_manifest(self.folder) != self.manifest


def read_state(folder: Path) -> State:
    """One whole state, even if another process writes meanwhile."""
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(folder)
        try:
            return State(folder, manifest, tuple(read_part(folder, part, manifest) for part in manifest.parts))
        except FileNotFoundError as error:
            if read_manifest(folder) == manifest:
                raise damage(folder, Path(error.filename).name, " is missing") from None
        except OSError as error:
            name = Path(error.filename).name
            raise StoreFailedError(f"the gallery {folder} can't be read: {name}: {error.strerror}") from None
    raise StoreFailedError(
        f"the gallery {folder} changes faster than it can be read: try again when fewer processes write"
    )


def check_new(folder: Path) -> None:
    """Refuse a place for a new gallery that holds something else; what a killed `build` left is no hindrance."""
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; a gallery is a folder")
        if (folder / MANIFEST_FILE).exists():
            raise ValueError(f"{folder} holds a gallery already: choose another place, or remove it first")
        if folder.is_dir() and any(not _OURS.fullmatch(path.name) for path in folder.iterdir()):
            raise ValueError(f"{folder} holds something else: choose an empty or new folder")
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ValueError(f"a gallery can't be made in {folder}: {error.strerror}") from None
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "may not be written to" if there.is_dir() else "is a file"
        raise ValueError(f"a gallery can't be made in {folder}: {there} {what}")


class Writer:
    """The one process that may change a gallery's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new_file(self, kind: str, ending: str) -> Path:
        """A name that no file has had."""
        return self.folder / f"{kind}-{secrets.token_hex(6)}.{ending}"

    def commit(self, manifest: Manifest) -> None:
        """Make this the gallery's state. Its files are on the disk before, and those of older states go after."""
        for name in manifest.files:
            sync(self.folder / name)
        write_manifest(self.folder, manifest)
        self.clean(manifest.files)

    def clean(self, kept: set[str]) -> None:
        """Remove all files of the gallery but those given."""
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in kept and path.name != LOCK_FILE:
                with contextlib.suppress(PermissionError):  # Windows keeps what others read; the next writer removes it
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(folder: Path, *, is_new: bool = False) -> Iterator[Writer]:
    """Wait until no other process writes, then be the one that does."""
    try:
        if is_new:
            folder.mkdir(parents=True, exist_ok=True)
        elif not (folder / MANIFEST_FILE).exists():
            read_manifest(folder)  # says what is wrong
        with locked(folder / LOCK_FILE):
            if is_new:
                check_new(folder)
            yield Writer(folder)
    except OSError as error:
        raise StoreFailedError(f"the gallery {folder} can't be written: {error.strerror or error}") from None
