"""Images that are objects of their own: below a prefix of a bucket, or as a manifest lists them."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.data.contract import Dataset, Level
from vitrail.data.regular_files import check_file_size
from vitrail.data.remote.addresses import name_of
from vitrail.data.remote.objects import ObjectMark, list_objects, look_at
from vitrail.data.remote.patience import patience_of_run
from vitrail.data.remote.remote_file import RemoteFile
from vitrail.data.stored import PackedStrings, printable

_MAX_MARKS = 1_000_000  # of objects that were looked at, in one process


class RemoteImages(Dataset):
    """Encoded images at addresses. What a listing said of them must still hold when they are read."""

    def __init__(
        self,
        *,
        name: str,
        split: str,
        addresses: Sequence[str],
        marks: Sequence[ObjectMark] | None,
        levels: Mapping[str, Level],
    ) -> None:
        self.name, self.split, self.levels = name, split, levels
        self._addresses = PackedStrings(addresses)
        self._sizes = None if marks is None else np.array([mark.size for mark in marks], dtype=np.int64)
        self._tags = None if marks is None else PackedStrings([mark.tag for mark in marks])

    def __len__(self) -> int:
        return len(self._addresses)

    def read(self, index: int) -> bytes:
        """The object's bytes; an `OSError` where there is none, or too large a one."""
        file = self._file(index)
        check_file_size(file.mark.size)
        return file.read(file.mark.size, 0)

    def expect(self, indices: Sequence[int]) -> None:
        """Have the objects fetched whose lengths are known."""
        if self._sizes is not None:
            for index in indices:
                file = self._file(index)
                file.expect(file.mark.size, 0)

    def locate(self, index: int) -> str:
        """The address."""
        return printable(self._addresses[index])

    def _file(self, index: int) -> RemoteFile:
        address = self._addresses[index]
        if self._sizes is None or self._tags is None:
            return RemoteFile(address, _look_once(address))
        return RemoteFile(address, ObjectMark(int(self._sizes[index]), self._tags[index]))


@functools.lru_cache(maxsize=_MAX_MARKS)
def _look_once(address: str) -> ObjectMark:
    """An object's mark, as it was when this process first wanted it."""
    return look_at(address, patience=patience_of_run())


class RemoteFolder:
    """A prefix of a bucket that is looked at like a folder; it is listed once, with all that is below it."""

    def __init__(self, address: str, *, below: str = "", objects: Mapping[str, ObjectMark] | None = None) -> None:
        self.address = address.rstrip("/")
        self._below = below
        if objects is None:
            objects = {listed.address: listed.mark for listed in list_objects(f"{self.address}/")}
            if not objects:
                raise ValueError(f"there is nothing below {self.address}/")
        self.objects = objects
        self.name = name_of(address)

    def __truediv__(self, path: str) -> "RemoteFolder":
        tidy = path.strip("/")
        below = f"{self._below}/{tidy}".strip("/") if tidy else self._below
        return RemoteFolder(self.address, below=below, objects=self.objects)

    def __str__(self) -> str:
        return f"{self.address}/{self._below}" if self._below else self.address

    @functools.cached_property
    def _tree(self) -> Mapping[str, tuple[list[str], list[str]]]:
        return _make_tree(self.address, tuple(self.objects))

    def names(self) -> tuple[list[str], list[str]]:
        """The names of the folders and of the objects that lie directly in it."""
        return self._tree.get(self._below, ([], []))

    def images(self, *, name: str, split: str, paths: Sequence[str], levels: Mapping[str, Level]) -> RemoteImages:
        """The data set of some paths below the address."""
        addresses = [f"{self.address}/{path}" for path in paths]
        marks = [self.objects[address] for address in addresses]
        return RemoteImages(name=name, split=split, addresses=addresses, marks=marks, levels=levels)


@functools.lru_cache(maxsize=2)
def _make_tree(address: str, addresses: tuple[str, ...]) -> Mapping[str, tuple[list[str], list[str]]]:
    """For every folder below an address the names of the folders and of the objects in it."""
    tree: dict[str, tuple[dict[str, None], list[str]]] = {"": ({}, [])}
    for whole in addresses:
        *folders, name = whole.removeprefix(f"{address}/").split("/")
        if any(folder in ("", ".", "..") for folder in folders):
            continue  # a key that no path is written like
        inner = ""
        for folder in folders:
            tree[inner][0][folder] = None
            inner = f"{inner}/{folder}".strip("/")
            tree.setdefault(inner, ({}, []))
        if name:  # some stores have empty objects that stand for folders
            tree[inner][1].append(name)
    return {folder: (list(inner), names) for folder, (inner, names) in tree.items()}
