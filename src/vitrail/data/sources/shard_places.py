"""Where a shard lies, on this disk or at an address: each kind finds its index, its bytes and its neighbours."""

import logging
import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from vitrail.data.remote.addresses import is_address, name_of, parent_of
from vitrail.data.remote.block_cache import block_cache
from vitrail.data.remote.objects import ObjectMark, read_object, store_of
from vitrail.data.remote.patience import OPENING_PATIENCE, patiently
from vitrail.data.remote.remote_file import RemoteFile, RemoteStream
from vitrail.data.sources.shard_index import (
    VERSION,
    ShardIndex,
    check_index,
    index_shard,
    index_text,
    read_index,
)
from vitrail.data.sources.shard_patterns import INDEX_SUFFIX
from vitrail.data.sources.tar_index import scan_members
from vitrail.storage import parse_json, write_text

MAX_LIST_BYTES = 1 << 26  # of a list of classes or of shards
_MAX_INDEX_BYTES = 1 << 29
_NUM_AT_ONCE = 16  # shards that are looked at side by side, where they lie far away
_LOGGER = logging.getLogger(__name__)


class ShardReader(Protocol):
    """An opened shard."""

    def read(self, size: int, offset: int) -> bytes:
        """Bytes from a place on; fewer where the shard ends."""

    def expect(self, size: int, offset: int) -> None:
        """Hear of bytes that are read soon."""


class Shard(ABC):
    """A tar file, which may be copied to other processes; it is opened by the one that reads it."""

    name: str
    folder: str
    place: str  # a text that names it wherever it is read

    @abstractmethod
    def index(self) -> ShardIndex:
        """Its samples."""

    @abstractmethod
    def open(self) -> ShardReader:
        """The shard, to read from."""

    @abstractmethod
    def read_beside(self, folder: str, name: str) -> str | None:
        """The text of a small file in its folder, or in the one above; None if there is none."""


@dataclass(frozen=True)
class LocalShard(Shard):
    """A tar file on this disk."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The file's name."""
        return self.path.name

    @property
    def place(self) -> str:  # type: ignore[override]
        """The whole path."""
        return str(self.path.absolute())

    @property
    def folder(self) -> str:  # type: ignore[override]
        """The folder it lies in."""
        return str(self.path.parent)

    def index(self) -> ShardIndex:
        """Its samples, by the index beside it, or by all its headers."""
        return index_shard(self.path)

    def open(self) -> ShardReader:
        """The file."""
        return _OpenFile(str(self.path.absolute()))

    def read_beside(self, folder: str, name: str) -> str | None:
        """The text of a file in a folder."""
        place = Path(folder) / name
        if not os.path.isfile(place):
            return None
        try:
            return place.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"{place} is not in UTF-8: save it again in that encoding") from None
        except OSError as error:
            raise ValueError(f"cannot read {place}: {error.strerror}") from None


@dataclass(frozen=True)
class RemoteShard(Shard):
    """A tar file at an address, which must stay what its mark says."""

    address: str
    mark: ObjectMark

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:  # type: ignore[override]
        """The last part of the address."""
        return name_of(self.address)

    @property
    def place(self) -> str:  # type: ignore[override]
        """The address."""
        return self.address

    @property
    def folder(self) -> str:  # type: ignore[override]
        """The address of the folder it lies in."""
        return parent_of(self.address)

    def open(self) -> ShardReader:
        """The object, in blocks through the cache."""
        return RemoteFile(self.address, self.mark)

    def index(self) -> ShardIndex:
        """Its samples: by the index beside it, by one that was made here before, or by reading all of it once."""
        kept = block_cache().folder / "indexes" / f"{RemoteFile(self.address, self.mark).key}.json"
        found = self._kept_index(kept)
        if found is not None:
            return found
        index = self._index_beside()
        if index is None:
            _LOGGER.info("%s has no index beside it: all of it is read once (`vitrail shards make` writes one)", self)
            with BufferedReader(RemoteStream(RemoteFile(self.address, self.mark)), 1 << 16) as file:
                members = list(scan_members(file, place=str(self), length=self.mark.size))
                index = read_index(file, members, place=str(self))
        try:
            kept.parent.mkdir(exist_ok=True)
            write_text(kept, index_text(index, {"version": VERSION, "size": self.mark.size}))
        except OSError:
            pass  # it is made again the next time
        return index

    def _kept_index(self, kept: Path) -> ShardIndex | None:
        """One of this very object, which its name says."""
        try:
            return check_index(parse_json(kept.read_bytes()), size=self.mark.size, read=None)
        except (OSError, ValueError):
            return None

    def _index_beside(self) -> ShardIndex | None:
        try:
            content = parse_json(read_object(f"{self.address}{INDEX_SUFFIX}", most=_MAX_INDEX_BYTES))
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise ValueError(str(error)) from None
        is_known = isinstance(content, dict) and bool(self.mark.tag) and content.get("tag") == self.mark.tag
        return check_index(content, size=self.mark.size, read=None if is_known else self._read_directly)

    def _read_directly(self, start: int, stop: int) -> bytes:
        store = store_of(self.address)
        return patiently(
            self.address,
            lambda: store.read(self.address, start, stop, mark=self.mark) if stop > start else b"",
            patience=OPENING_PATIENCE,
        )

    def read_beside(self, folder: str, name: str) -> str | None:
        """The text of an object in a folder."""
        try:
            return read_object(f"{folder}/{name}", most=MAX_LIST_BYTES).decode("utf-8-sig")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise ValueError(f"{folder}/{name} is not in UTF-8: save it again in that encoding") from None
        except OSError as error:
            raise ValueError(str(error)) from None


def folder_above(folder: str) -> str:
    """The folder that a folder lies in."""
    return parent_of(folder) if is_address(folder) else str(Path(folder).absolute().parent)


def join_place(folder: str, name: str) -> str:
    """A file in a folder, on this disk or at an address."""
    return f"{folder}/{name}" if is_address(folder) else str(Path(folder) / name)


def index_all(shards: list[Shard]) -> list[ShardIndex]:
    """The index of each shard; of those far away several at once."""
    if not any(isinstance(shard, RemoteShard) for shard in shards):
        return [shard.index() for shard in shards]
    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        return list(pool.map(lambda shard: shard.index(), shards))


class _OpenFile:
    """A file that is read at given places; closed when nobody reads it any more."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def expect(self, size: int, offset: int) -> None:
        """Nothing: the system reads ahead by itself."""

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
