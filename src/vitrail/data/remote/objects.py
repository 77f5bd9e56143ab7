"""The stores that addresses name, and what is asked of them: how long an object is, some of its bytes, a listing."""

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitrail.data.remote.addresses import scheme_of
from vitrail.data.remote.patience import OPENING_PATIENCE, patiently

CONNECT_SECONDS, ANSWER_SECONDS = 10, 30  # until a connection must stand, and without a byte of an answer
MAX_LISTED = 20_000_000  # objects of one listing


class _Guard:
    """A lock that no forked process inherits in the hands of a thread that it has not."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Make it anew, free."""
        self.lock = threading.Lock()


_GUARD = _Guard()


class ObjectMark(NamedTuple):
    """What tells an object from another that takes its place."""

    size: int
    tag: str  # the store's own mark of the content (ETag), or when it was changed; empty where the store says neither


class Listed(NamedTuple):
    """An object in a listing."""

    address: str
    mark: ObjectMark


class Store(ABC):
    """One kind of place. Methods raise `PassingFaultError` where it is worth to try again."""

    can_list: bool = True
    can_write: bool = True

    @abstractmethod
    def look(self, address: str) -> ObjectMark:
        """How long an object is and what marks it; FileNotFoundError where there is none."""

    @abstractmethod
    def read(self, address: str, start: int, stop: int, *, mark: ObjectMark) -> bytes:
        """Bytes of an object that must be the one of the mark."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose addresses begin so."""
        raise NotImplementedError

    def write(self, address: str, path: Path) -> None:
        """Make a file of this disk an object, whole or not at all."""
        raise NotImplementedError


def store_of(address: str) -> Store:
    """The store of an address, with this process's own connections; threads that want one at once share it."""
    with _GUARD.lock:
        return _make_store(scheme_of(address), os.getpid())


@functools.cache
def _make_store(scheme: str, process: int) -> Store:
    """A store for a process: connections do not survive a fork."""
    if scheme in ("http", "https"):
        from vitrail.data.remote.web_store import WebStore

        return WebStore()
    if scheme == "s3":
        from vitrail.data.remote.s3_store import S3Store

        return S3Store()
    from vitrail.data.remote.plain_store import PlainStore, open_google

    return PlainStore(open_google(), scheme="gs")


def forget_stores() -> None:
    """Have stores made anew, with the environment's credentials of now."""
    _make_store.cache_clear()


def look_at(address: str, *, patience: float = OPENING_PATIENCE) -> ObjectMark:
    """How long an object is and what marks it; FileNotFoundError where there is none."""
    return patiently(address, lambda: store_of(address).look(address), patience=patience)


def is_there(address: str) -> bool:
    """Whether a store has an object at the address."""
    try:
        look_at(address)
    except FileNotFoundError:
        return False
    return True


def list_objects(prefix: str) -> list[Listed]:
    """All objects whose addresses begin so, in the order of their addresses."""
    store = store_of(prefix)
    if not store.can_list:
        raise ValueError(
            f"{prefix}: a web server has no listing that could be relied on: name a manifest (.csv, .parquet), shards "
            "by numbers (shards:https://.../train-{000..127}.tar) or their list (shards:https://.../shards.json)"
        )

    def read_all() -> list[Listed]:
        found = []
        for listed in store.list(prefix):
            found.append(listed)
            if len(found) > MAX_LISTED:
                raise ValueError(f"{prefix} holds more than {MAX_LISTED:,} objects: put the images into shards")
        return found

    return sorted(patiently(prefix, read_all, patience=OPENING_PATIENCE))


def read_object(address: str, *, most: int, patience: float = OPENING_PATIENCE) -> bytes:
    """All of a small object, past the cache; FileNotFoundError where there is none, an OSError beyond `most` bytes."""
    mark = look_at(address, patience=patience)
    if mark.size > most:
        raise OSError(f"{address} has {mark.size:,} bytes, more than the limit of {most:,}")
    if mark.size == 0:
        return b""
    return patiently(address, lambda: store_of(address).read(address, 0, mark.size, mark=mark), patience=patience)


def require_writing(address: str) -> None:
    """Refuse an address that nothing can be written to."""
    if not store_of(address).can_write:
        raise ValueError(f"nothing can be written to {address}: give a folder or an address such as s3://bucket/shards")


def write_object(address: str, path: Path) -> ObjectMark:
    """Make a file of this disk an object, and look at what is there then."""
    patiently(address, lambda: store_of(address).write(address, path))
    mark = look_at(address)
    if mark.size != path.stat().st_size:
        raise ValueError(
            f"{address} has {mark.size:,} bytes after {path.stat().st_size:,} were written to it: is it shared?"
        )
    return mark
