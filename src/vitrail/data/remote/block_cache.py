"""Blocks of objects on this disk: at most so many bytes, the least recently used go; all processes share them."""

import contextlib
import functools
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from vitrail.data.contract import SourceFailedError
from vitrail.storage import hash_text, is_partial, locked, replacing

BLOCK_BYTES = 1 << 22
_FOLDER, _GIGABYTES = "VITRAIL_CACHE", "VITRAIL_REMOTE_GB"
_DEFAULT_GIGABYTES = 20.0
_LEAST_BYTES = 16 * BLOCK_BYTES
_LEFT_AFTER_CLEARING = 7 / 8  # of the limit
_ENDING = b"vtrl"  # behind the content of a block, before the sum of its bytes
_NUM_LOCKS = 256
_MAX_OPEN = 128  # blocks of one process
_SECONDS_BETWEEN_TOUCHES = 30.0
_SECONDS_OF_A_DRAFT = 3600.0  # after which one belongs to a process that was killed


class CachedBlock:
    """A block that is on the disk; what was opened can be read even when another process has removed it."""

    def __init__(self, path: Path) -> None:
        self.path, self.touched = path, time.monotonic()
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.size = os.fstat(self._descriptor).st_size - len(_ENDING) - 4

    @property
    def is_whole(self) -> bool:
        """Whether the block's sum says that every byte is as it was written."""
        data = os.pread(self._descriptor, self.size + len(_ENDING) + 4, 0) if self.size > 0 else b""
        return data[self.size :] == _ENDING + zlib.crc32(memoryview(data)[: self.size]).to_bytes(4, "little")

    def read(self, start: int, stop: int) -> bytes:
        """Some of its bytes."""
        return os.pread(self._descriptor, min(stop, self.size) - start, start)

    def touch(self) -> None:
        """Note that it is of use, so that others go first; now and then is enough."""
        if time.monotonic() - self.touched > _SECONDS_BETWEEN_TOUCHES:
            self.touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class BlockCache:
    """A folder of blocks. Each is written whole, with a sum of its bytes; one process fetches it, others wait."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        if limit < _LEAST_BYTES:
            raise ValueError(
                f"{_GIGABYTES} is too small in the environment: at least {_LEAST_BYTES / 1e9:.2f} is needed"
            )
        self.folder, self.limit = folder, limit
        self._blocks, self._locks = folder / "blocks", folder / "locks"
        self._opened: OrderedDict[Path, CachedBlock] = OrderedDict()
        self._guard = threading.Lock()
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(exist_ok=True)
        except OSError as error:
            raise ValueError(self._describe(error)) from None

    def block(self, key: str, number: int, fetch: Callable[[], bytes]) -> CachedBlock:
        """A block of an object, from this disk or fetched now."""
        path = self._path(key, number)
        found = self._recall(path)
        if found is None:
            try:
                with locked(self._locks / f"{int(hash_text(path.name, size=2), 16) % _NUM_LOCKS:02x}"):
                    found = self._open(path) or self._store(path, fetch())
            except OSError as error:
                if error.filename is not None and Path(error.filename).is_relative_to(self.folder):
                    raise SourceFailedError(self._describe(error)) from None
                raise
        with self._guard:
            self._opened[path] = found
            self._opened.move_to_end(path)
            while len(self._opened) > _MAX_OPEN:
                self._opened.popitem(last=False)
        found.touch()
        return found

    def has(self, key: str, number: int) -> bool:
        """Whether the cache has the block of an object on this disk."""
        return self._path(key, number).exists()

    def _path(self, key: str, number: int) -> Path:
        return self._blocks / key[:2] / f"{key}-{number}"

    def _recall(self, path: Path) -> CachedBlock | None:
        with self._guard:
            found = self._opened.get(path)
        return found or self._open(path)

    def _open(self, path: Path) -> CachedBlock | None:
        """A block that is there and whole; a damaged one is removed."""
        try:
            block = CachedBlock(path)
        except FileNotFoundError:
            return None
        if not block.is_whole:
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):  # another process may have removed it: what is open can be read
            os.utime(path)
        return block

    def _store(self, path: Path, data: bytes) -> CachedBlock:
        self._make_room(len(data) + len(_ENDING) + 4)
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as draft:
            draft.write_bytes(data + _ENDING + zlib.crc32(data).to_bytes(4, "little"))
        return CachedBlock(path)

    def _make_room(self, num_bytes: int) -> None:
        """Count a block before it is written: a process that is killed leaves too high a count, never too low a one."""
        ledger = self.folder / "bytes.txt"
        with locked(self.folder / ".lock"):
            try:
                total = int(ledger.read_text())
            except (OSError, ValueError):
                total = self.limit  # not known: counted now
            if total + num_bytes > self.limit:
                total = self._clear(num_bytes)
            ledger.write_text(str(total + num_bytes))

    def _clear(self, num_bytes: int) -> int:
        """Count what is there; without room for more, remove what was not used for the longest time."""
        found = []
        for path in self._blocks.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                if not is_partial(path):
                    found.append((status.st_mtime_ns, status.st_size, path))
                elif time.time() - status.st_mtime > _SECONDS_OF_A_DRAFT:
                    path.unlink()
        total = sum(size for _, size, _ in found)
        if total + num_bytes <= self.limit:
            return total
        for _, size, path in sorted(found):
            if total + num_bytes <= _LEFT_AFTER_CLEARING * self.limit:
                break
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            total -= size
        return total

    def _describe(self, error: OSError) -> str:
        return (
            f"the cache of remote data in {self.folder} can't be written ({error.strerror}): make room, lower "
            f"{_GIGABYTES} (now {self.limit / 1e9:g}), or set {_FOLDER} to another folder"
        )


def block_cache() -> BlockCache:
    """The cache in `$VITRAIL_CACHE/remote` or `~/.cache/vitrail/remote`, of `$VITRAIL_REMOTE_GB` at most."""
    text = os.environ.get(_GIGABYTES, "")
    try:
        gigabytes = float(text) if text else _DEFAULT_GIGABYTES
        limit = int(gigabytes * 1e9)
    except (ValueError, OverflowError):
        raise ValueError(f"{_GIGABYTES} is {text!r} in the environment: it must be a number, such as 20") from None
    given = os.environ.get(_FOLDER)
    folder = (Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail") / "remote"
    return _make_cache(folder.absolute(), limit, os.getpid())


@functools.lru_cache(maxsize=4)
def _make_cache(folder: Path, limit: int, process: int) -> BlockCache:
    return BlockCache(folder, limit=limit)
