"""Files of one folder that belong together: at any moment all of them are the old ones, or all the new.

The new files are complete in a folder of their own before one rename decides that they are the content. Then each takes
its place; whoever reads or writes the folder next finishes that if the process has ended meanwhile.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from vitrail.storage.reading import read_json
from vitrail.storage.whole import draft_beside, is_partial, sync

_DECIDED = ".update"  # a folder in the folder: files that are its content already and have yet to take their places
_LEAVING = ".leaving.json"  # a list in it: the names of files that are its content no longer


@contextlib.contextmanager
def replacing_files(folder: Path, *, keeps_others: bool, leaving: Collection[str] = ()) -> Iterator[Path]:
    """A draft folder to write files into, which become the content of `folder` together when the block ends well.

    `keeps_others` leaves other files that are in the folder, but for those of the names `leaving`; else they go.
    """
    if folder.exists():
        settle(folder)
        draft = draft_beside(folder / "update")
    else:
        draft = draft_beside(folder)
    made = [parent for parent in draft.parents if not parent.exists()]
    try:
        draft.mkdir(parents=True)
        yield draft
        install_folder(draft, folder, keeps_others=keeps_others, leaving=leaving)
    except OSError as error:
        if error.filename is not None and Path(error.filename).parent == draft:
            error.filename = str(folder / Path(error.filename).name)  # what a person knows it by
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):  # it holds something, as a rule the folder
                parent.rmdir()


def install_folder(draft: Path, folder: Path, *, keeps_others: bool, leaving: Collection[str] = ()) -> None:
    """Make the files of a draft, on the same file system, the content of `folder`; the draft is gone then."""
    for path in draft.iterdir():
        sync(path)
    if folder.is_dir():
        settle(folder)
        names = {path.name for path in draft.iterdir()}
        in_the_way = [folder / name for name in names if (folder / name).is_dir()]
        if in_the_way:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(in_the_way[0]))
        others = {path.name for path in folder.iterdir() if path.is_file() and not is_partial(path)} - names
        if keeps_others:
            others &= set(leaving)
        if others:
            (draft / _LEAVING).write_text(json.dumps(sorted(others)), encoding="utf-8")
            sync(draft / _LEAVING)
        sync(draft)
        draft.rename(folder / _DECIDED)
        settle(folder)
    else:
        sync(draft)
        draft.rename(folder)
        sync(folder.parent)


def settle(folder: Path) -> None:
    """Finish what `install_folder` began in a folder and did not end; there is nothing to do as a rule."""
    decided = folder / _DECIDED
    if not decided.is_dir():
        return
    if decided.is_symlink():
        raise ValueError(f"{decided} leads elsewhere, which vitrail never makes so: remove it")
    try:
        sync(folder)
        _take_places(decided, folder)
    except OSError as error:
        raise ValueError(
            f"{folder}: writing it was cut short and can't be finished here ({error.strerror}): "
            "open it once where it may be written to"
        ) from None


def _take_places(decided: Path, folder: Path) -> None:
    """Remove what leaves, and move the draft's files to their places; another process may do the same meanwhile."""
    leaving = decided / _LEAVING
    with contextlib.suppress(FileNotFoundError):
        for name in _read_leaving(leaving):
            (folder / name).unlink(missing_ok=True)
        leaving.unlink()
    with contextlib.suppress(FileNotFoundError):
        for path in list(decided.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                path.replace(folder / path.name)
        sync(folder)
        decided.rmdir()


def _read_leaving(leaving: Path) -> list[str]:
    """The names in the list; a folder may come from elsewhere, and nothing outside of it is to be removed."""
    if not leaving.exists():
        return []
    names = read_json(leaving, remedy="remove it")
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ValueError(f"{leaving} must hold a list of names of files beside it: remove it")
    return names
