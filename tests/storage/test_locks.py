"""Locks: one holder at a time, on systems of either kind; and a package that can be imported on both."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from vitrail.storage import locked

# All of the package on a system without Unix's modules, and a stand-in for the module of Windows that locks files.
IMPORTING = """
import errno, importlib, os, pkgutil, sys, types
import torch  # which may have what it wants
sys.modules.update(fcntl=None, resource=None)
import vitrail
for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
held = set()
def locking(descriptor, mode, count):
    where = os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR)
    if mode == 0:
        held.remove(where)
    elif where in held:
        raise OSError(errno.EACCES, "Permission denied")
    else:
        held.add(where)
sys.modules["msvcrt"] = types.SimpleNamespace(LK_UNLCK=0, LK_NBLCK=2, locking=locking)
"""
LOCKING = """
import threading, time
from pathlib import Path
from vitrail.storage import locked
from vitrail.training.loop.planning import _largest_size
from vitrail.training.runs import run_folder
from vitrail.training.runs.run_folder import RunFolder
run_folder.PATIENCE = 0.1
folder = Path(sys.argv[1])
with RunFolder(folder / "run").locked():
    try:
        with RunFolder(folder / "run").locked():
            print("both")
    except ValueError as error:
        print(error)
with RunFolder(folder / "run").locked():
    print("free again")
order = []
def wait():
    with locked(folder / "file"):
        order.append("second")
with locked(folder / "file"):
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    order.append("first")
thread.join()
print(*order, held, _largest_size())
"""


def test_the_whole_package_is_imported_and_locks_where_unix_modules_are_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORTING + LOCKING, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        f"{tmp_path / 'run'} is in use by another process: a run of it is going on",
        "free again",
        "first second set() None",
    ]


def test_one_holds_the_lock_and_the_others_wait_or_are_told(tmp_path: Path) -> None:
    order: list[str] = []

    def hold() -> None:
        with locked(tmp_path / "file"):
            order.append("second")

    with locked(tmp_path / "file"):
        thread = threading.Thread(target=hold)
        thread.start()
        with pytest.raises(BlockingIOError) as caught, locked(tmp_path / "file", patience=0.0):
            pass
        order.append("first")
    thread.join()
    assert caught.value.filename == str(tmp_path / "file")
    assert order == ["first", "second"]


def die_with_a_lock(path: Path, pipe: Connection) -> None:
    """Take a lock, fork a process that lives on, and be killed."""
    with locked(path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
        pipe.send(child)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_a_forked_process_does_not_keep_the_lock_of_one_that_was_killed(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=die_with_a_lock, args=(tmp_path / "file", theirs))
    process.start()
    child = ours.recv()
    process.join()
    with locked(tmp_path / "file", patience=0.0):
        os.kill(child, signal.SIGKILL)  # which fails if it is not there


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_a_forked_process_does_not_give_up_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "file"):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.0,))
        process.start()
        process.join()
        with pytest.raises(BlockingIOError), locked(tmp_path / "file", patience=0.0):
            pass


def test_the_content_of_a_locked_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with locked(tmp_path / "file"):
        assert (tmp_path / "file").read_text() == "content"
    assert (tmp_path / "file").read_text() == "content"
