"""Locks: one holder at a time, on systems of either kind; and a package that can be imported on both."""

import subprocess
import sys
import threading
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
from vitrail.training.runs.run_folder import RunFolder
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
        with pytest.raises(BlockingIOError) as caught, locked(tmp_path / "file", waits=False):
            pass
        order.append("first")
    thread.join()
    assert caught.value.filename == str(tmp_path / "file")
    assert order == ["first", "second"]


def test_the_content_of_a_locked_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with locked(tmp_path / "file"):
        assert (tmp_path / "file").read_text() == "content"
    assert (tmp_path / "file").read_text() == "content"
