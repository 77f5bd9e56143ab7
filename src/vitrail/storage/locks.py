"""One process at a time: locks that go with the process that holds them, however it ends."""

import contextlib
import errno
import functools
import importlib
import math
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

_BYTE = 1 << 30  # the one that Windows locks: behind the content, which others may go on reading
_PAUSE = 0.05  # seconds between two attempts
_HELD: set[FileIO] = set()  # the files whose locks this process has


@contextlib.contextmanager
def locked(path: Path, *, patience: float = math.inf) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be.

    It is a BlockingIOError where another process has it for longer than `patience` seconds. Processes that are forked
    inside the block do not share it.
    """
    with path.open("ab", buffering=0) as file:
        try:
            _acquire(file.fileno(), until=time.monotonic() + patience)
        except OSError as error:
            error.filename = str(path)
            raise
        _close_in_children()
        _HELD.add(file)
        try:
            yield
        finally:
            _HELD.discard(file)
            if not file.closed:
                _release(file.fileno())


@functools.cache
def _close_in_children() -> None:
    """Have every process that is forked from now on close its copies: a lock lasts as long as anyone has the file."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_held)


def _close_held() -> None:
    while _HELD:
        _HELD.pop().close()


def _acquire(descriptor: int, *, until: float) -> None:
    while not _is_acquired(descriptor, waits=until == math.inf):
        if time.monotonic() >= until:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        time.sleep(_PAUSE)


def _is_acquired(descriptor: int, *, waits: bool) -> bool:
    """Whether the lock could be had now; where the system can wait by itself and `waits`, it is had in the end."""
    system = _find_system()
    try:
        if hasattr(system, "flock"):
            system.flock(descriptor, system.LOCK_EX | (0 if waits else system.LOCK_NB))
        else:
            os.lseek(descriptor, _BYTE, os.SEEK_SET)
            system.locking(descriptor, system.LK_NBLCK, 1)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise
        return False
    return True


def _release(descriptor: int) -> None:
    system = _find_system()
    if hasattr(system, "flock"):
        system.flock(descriptor, system.LOCK_UN)
    else:
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        system.locking(descriptor, system.LK_UNLCK, 1)


def _find_system() -> Any:
    """The module that locks files: Unix has the one, Windows the other."""
    try:
        return importlib.import_module("fcntl")
    except ImportError:
        return importlib.import_module("msvcrt")
