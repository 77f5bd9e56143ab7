"""A file of answers that is written as they come, a row an image; one that was ended goes on where it was."""

import contextlib
import csv
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vitrail.storage import hash_text, locked, parse_json, read_json, sync, write_json

KINDS = {".csv": False, ".jsonl": True}  # endings of files, and whether their rows are JSON
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@dataclass(frozen=True)
class Begun:
    """What a file has already."""

    num_rows: int = 0  # of images
    num_unread: int = 0  # rows that say why an image can't be read
    columns: tuple[str, ...] | None = None  # of CSV
    num_bytes: int = 0  # of whole rows


class SavedAnswers:
    """Answers about a list of images in a file, which has another name until it has all of them.

    `key` stands for the model and for what it is asked: answers of another one are not gone on with. One command at a
    time may `begin` and write, inside `held`.
    """

    def __init__(self, place: str, *, key: str, paths: Sequence[str]) -> None:
        self.path = Path(place).expanduser()
        if self.path.suffix not in KINDS:
            raise ValueError(f"--save {place}: a file of answers ends with {' or '.join(KINDS)}")
        self._check_new()
        self.is_json = KINDS[self.path.suffix]
        self.rows = self.path.with_name(f"{self.path.name}.part")
        self.note = self.path.with_name(f"{self.path.name}.part.json")
        self.lock = self.path.with_name(f"{self.path.name}.part.lock")
        self.wanted = {"key": key, "num_images": len(paths), "images": hash_text("\0".join(paths))}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other commands from writing to the same file; one that does already is an error."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.lock, patience=0))
            except BlockingIOError:
                raise ValueError(
                    f"--save {self.path} is being written by another command: wait for its end, or choose another name"
                ) from None
            except OSError as error:
                raise ValueError(f"--save {self.path} can't be written: {error.strerror or error}") from None
            self._check_new()  # the other command may have ended just now
            yield
            with contextlib.suppress(OSError):  # Windows removes no open file
                self.lock.unlink()

    def begin(self) -> Begun:
        """What is there of the same answers, without a row that was torn; answers to another question are an error."""
        found = Begun()
        try:
            if self.rows.is_file() and self.rows.stat().st_size:
                remedy = f"remove {self.rows} to begin anew, or choose another name"
                if not self.note.is_file() or read_json(self.note, remedy=remedy) != self.wanted:
                    raise ValueError(
                        f"--save {self.path}: {self.rows} has answers of another model, about other images or with "
                        f"another --top or --threshold: {remedy}"
                    )
                found = self._read()
            with self.rows.open("ab") as file:
                file.truncate(found.num_bytes)
            write_json(self.note, self.wanted)
        except OSError as error:
            raise ValueError(f"--save {self.path} can't be written: {error.strerror or error}") from None
        return found

    @contextlib.contextmanager
    def writing(self) -> Iterator[TextIO]:
        """The file to write further rows to; it takes its name when the block ends well."""
        try:
            with self.rows.open("a", encoding="utf-8", newline="") as file:
                yield file
            sync(self.rows)
            self.rows.replace(self.path)
            self.note.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in _OF_THE_DISK:
                raise
            why = f"{error.strerror}; what is written is kept: make room, then run the same command to go on"
            raise ValueError(f"--save {self.path} can't be written: {why}") from None

    def _check_new(self) -> None:
        if self.path.exists():
            raise ValueError(f"--save {self.path} is there already: remove it, or choose another name")

    def _read(self) -> Begun:
        columns: tuple[str, ...] | None = None
        num_rows = num_unread = num_bytes = 0
        for row in _whole_rows(self.rows, is_json=self.is_json):
            num_bytes += len(row)
            if self.is_json:
                num_unread += "error" in parse_json(row)
            elif columns is None:
                columns = tuple(next(csv.reader([row.decode()])))
                continue
            else:
                num_unread += next(csv.reader(row.decode().splitlines(keepends=True)))[-1] != ""
            num_rows += 1
        return Begun(num_rows, num_unread, columns, num_bytes)


def _whole_rows(path: Path, *, is_json: bool) -> Iterator[bytes]:
    """Rows that end; one of CSV may have lines inside of quotes."""
    row = b""
    with path.open("rb") as file:
        for line in file:
            row += line
            if row.endswith(b"\n") and (is_json or row.count(b'"') % 2 == 0):
                yield row
                row = b""
