"""One process at a time: locks that go with the process that holds them, however it ends."""

import contextlib
import errno
import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BYTE = 1 << 30  # the one that Windows locks: behind the content, which others may go on reading
_PAUSE = 0.05  # seconds between two attempts, where the system can't wait by itself


@contextlib.contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be.

    Without `waits` it is a BlockingIOError where another process has it.
    """
    with path.open("ab", buffering=0) as file:
        try:
            _acquire(file.fileno(), waits=waits)
        except OSError as error:
            error.filename = str(path)
            raise
        try:
            yield
        finally:
            _release(file.fileno())


def _acquire(descriptor: int, *, waits: bool) -> None:
    system = _find_system()
    if hasattr(system, "flock"):
        system.flock(descriptor, system.LOCK_EX | (0 if waits else system.LOCK_NB))
        return
    while True:
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        try:
            system.locking(descriptor, system.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            if not waits:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
            time.sleep(_PAUSE)
        else:
            return


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
