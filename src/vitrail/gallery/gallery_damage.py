"""What tells a gallery's damaged files: sizes and checksums, compared when a file is opened for the first time."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from vitrail.gallery.store_failures import StoreFailedError

_BLOCK = 1 << 20
_known: set[tuple[int, int, int, int, str]] = set()  # files that this process has compared; none changes once written


def damage(folder: Path, name: str, what: str) -> StoreFailedError:
    """The error that names a damaged file and says what to do."""
    return StoreFailedError(
        f"the gallery {folder} is damaged: {name}{what}; restore the file from a copy, or build the gallery anew"
    )


def hash_content(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return _hash(file)


def compare(path: Path, *, size: int, sha256: str | None) -> bool:
    """Refuse a file that is not as it was written; whether this process had not compared it before.

    Files of galleries from before checksums have none: their size is compared alone.
    """
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        if state.st_size != size:
            raise ValueError(f"it has {state.st_size:,} bytes instead of {size:,}")
        if sha256 is None:
            return True
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, sha256)
        if key in _known:
            return False
        if _hash(file) != sha256:
            raise ValueError("its content is not what was written (its checksum differs)")
    _known.add(key)
    return True


def _hash(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()
