"""Single files that take their name only when all of them is on the disk."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_ENDING = ".partial"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; the file under it takes the place of `path` when the block ends well."""
    temporary = draft_beside(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno is not None and (error.filename is None or Path(error.filename) == temporary):
            error.filename = str(path)  # what a person knows it by
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[Any], object]) -> None:
    """Let `write` fill a binary file that takes the name `path` only when all of it is on the disk."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        watched = _Watched(file)
        try:
            write(watched)
        except RuntimeError as error:
            # torch.save closes its archive after a failed write and raises about that instead
            raise watched.error or error from None


def write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a text in UTF-8 whole; `errors` says what happens to what has no code in it, as in `str.encode`."""
    write_whole(path, lambda file: file.write(text.encode("utf-8", errors)))


def write_json(path: Path, content: object) -> None:
    """Write a small JSON file whole."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def link_whole(source: Path, path: Path) -> None:
    """Give a file a second name in place of what had it; a copy where the file system has no links."""
    with replacing(path) as temporary:
        link_or_copy(source, temporary)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name that nothing has; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as original, target.open("wb") as copy:
            shutil.copyfileobj(original, copy, 1 << 20)


def sync(path: Path) -> None:
    """Put the content of a file, or the names in a folder where the system can, on the disk."""
    has_folders = hasattr(os, "O_DIRECTORY")  # Windows opens none, and syncs only files that may be written
    if path.is_dir() and not has_folders:
        return
    descriptor = os.open(path, os.O_RDONLY if has_folders else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def draft_beside(path: Path) -> Path:
    """A name that nobody else uses, also on another machine that shares the file system."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{_ENDING}")


def is_partial(path: Path) -> bool:
    """Whether a name is one that a process writes under, or wrote under when it was killed."""
    return path.name.startswith(".") and path.name.endswith(_ENDING)


class _Watched:
    """A file that remembers the error of a write."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()
