"""Answers of a teacher on disk: for a fixed number of views of each image, read and written through shared memory."""

import json
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.storage import hash_text, read_json, write_json
from vitrail.storage.whole import draft_beside

PARTS_FILE, KNOWN_FILE, ANSWERS_FILE = "cache.json", "known.bin", "answers.bin"


class AnswerStore(ABC):
    """What a teacher said about each view of each sample, as records of one size.

    Answers are kept rounded and used as they are kept, also when they are fresh: a run does not depend on which of
    them it found. Several processes and threads may read and write one store. An answer is marked as known once it is
    written in full, so that a process may end at any point.
    """

    def __init__(self, folder: Path, *, shape: tuple[int, int], record: np.dtype) -> None:
        self.folder, self.record = folder, record
        self._writing = threading.Lock()
        _check_size(folder / KNOWN_FILE, shape[0] * shape[1])
        _check_size(folder / ANSWERS_FILE, shape[0] * shape[1] * record.itemsize)
        try:
            # Read as memory, written as files: a write to memory that the full disk has no room for ends the process.
            self._known = np.memmap(folder / KNOWN_FILE, dtype=np.uint8, mode="r", shape=shape)
            self._answers = np.memmap(folder / ANSWERS_FILE, dtype=record, mode="r", shape=shape)
        except OSError as error:
            raise _broken(folder, error.strerror or str(error)) from None

    @abstractmethod
    def encode(self, answers: Tensor) -> np.ndarray:
        """The records [batch] of answers [batch, numbers]; answers that can't be kept are refused."""

    @abstractmethod
    def decode(self, records: np.ndarray, device: torch.device) -> Tensor:
        """The answers, float32 [batch, numbers], that records hold."""

    def lookup(self, indices: Tensor, views: Tensor) -> Tensor:
        """Which answers are known: bool [batch], on the CPU."""
        return torch.from_numpy(self._known[self._places(indices, views)] != 0)

    def write(self, indices: Tensor, views: Tensor, answers: Tensor) -> None:
        """Keep answers [batch, numbers]; what is known already stays as it is."""
        records = self.encode(answers)
        rows, columns = self._places(indices, views)
        with self._writing:  # lanes may be asked about one image at the same time: the first answer is the one kept
            chosen = np.flatnonzero(self._known[rows, columns] == 0)
            places = (rows * self._known.shape[1] + columns)[chosen].tolist()
            self._write(places, records[chosen])

    def _write(self, places: list[int], records: np.ndarray) -> None:
        try:
            with (self.folder / ANSWERS_FILE).open("r+b", buffering=0) as file:
                for place, record in zip(places, records, strict=True):
                    _write_at(file, record.tobytes(), place * self.record.itemsize)
            with (self.folder / KNOWN_FILE).open("r+b", buffering=0) as file:
                for place in places:
                    _write_at(file, b"\x01", place)
        except OSError as error:
            raise ValueError(
                f"the teacher's answers can't be kept ({error.strerror}): make room, or delete the folder "
                f"{self.folder} and train without teacher.cache"
            ) from None

    def read(self, indices: Tensor, views: Tensor, *, device: torch.device | None = None) -> Tensor:
        """Known answers, float32 [batch, numbers], on the device of the indices unless one is given."""
        places = self._places(indices, views)
        if not self._known[places].all():
            raise ValueError(f"{self.folder} has no answer yet to some of these images")
        return self.decode(self._answers[places], indices.device if device is None else device)

    def answer(
        self,
        indices: Tensor,
        views: Tensor,
        *,
        pixels: Callable[[], Tensor],
        teacher: Callable[[Tensor], Tensor],
        device: torch.device | None = None,
    ) -> Tensor:
        """What the teacher says about the images: as stored, and asked only where it is not known yet.

        `pixels` gives the images of the whole batch in the teacher's form. The last bits of a network's answers can
        depend on which images it is asked about together, so that two stores that were filled in another order may
        differ by a rounding; a store never changes an answer that it has.
        """
        unknown = (~self.lookup(indices, views)).nonzero().flatten()
        if len(unknown):
            images = pixels()
            answers = teacher(images if len(unknown) == len(indices) else images[unknown.to(images.device)])
            chosen = unknown.to(indices.device)
            self.write(indices[chosen], views[unknown.to(views.device)], answers)
        return self.read(indices, views, device=device)

    def describe(self) -> str:
        """One line for a log."""
        num_known, size = int(np.count_nonzero(self._known)), self._known.size
        megabytes = size * (1 + self.record.itemsize) / 1e6
        return f"teacher's answers in {self.folder}: {num_known} of {size} known, {megabytes:.1f} MB when full"

    def _places(self, indices: Tensor, views: Tensor) -> tuple[np.ndarray, np.ndarray]:
        places = indices.cpu().numpy(), views.cpu().numpy()
        for values, limit, name in zip(places, self._known.shape, ("samples", "views"), strict=True):
            if values.size and (values.min() < 0 or values.max() >= limit):
                raise ValueError(f"{self.folder} is for {limit} {name}: {values.min()} ... {values.max()} is outside")
        return places


def default_folder() -> Path:
    """Where answers are kept: below `$VITRAIL_CACHE`, else below `~/.cache/vitrail`."""
    given = os.environ.get("VITRAIL_CACHE")
    return (Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail") / "teachers"


def open_place(folder: Path, parts: Mapping[str, Any], *, num_answers: int, record: np.dtype) -> Path:
    """The subfolder of `folder` that all of `parts` decide; an empty store where there is none yet."""
    place = locate_place(folder, parts)
    if not place.is_dir():
        _create(place, parts, num_answers=num_answers, size=record.itemsize)
    _check_parts(place, parts)
    return place


def locate_place(folder: Path, parts: Mapping[str, Any]) -> Path:
    """Where the store of these parts is, or would be."""
    return folder.expanduser() / hash_text(json.dumps(parts, sort_keys=True), size=12)


def check_counts(**counts: int) -> None:
    """Refuse a store of nothing."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"a teacher's cache needs {name} of at least 1, not {count}")


def _create(place: Path, parts: Mapping[str, Any], *, num_answers: int, size: int) -> None:
    """Make an empty store, whole or not at all; another process may do the same at the same time."""
    draft = draft_beside(place)
    try:
        draft.mkdir(parents=True)
        for name, length in ((KNOWN_FILE, num_answers), (ANSWERS_FILE, num_answers * size)):
            with (draft / name).open("wb") as file:
                file.truncate(length)  # takes room on the disk only where answers are written
        write_json(draft / PARTS_FILE, dict(parts))
        draft.rename(place)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not place.is_dir():  # else the other process was faster
            raise ValueError(
                f"a cache of the teacher's answers can't be made in {place.parent} ({error.strerror}): make room, or "
                "set teacher.cache_folder or VITRAIL_CACHE to another folder"
            ) from None


def _check_parts(place: Path, parts: Mapping[str, Any]) -> None:
    found = read_json(place / PARTS_FILE, remedy=f"for new answers of the teacher delete the folder {place}")
    if found != parts:
        other = [name for name in parts if not isinstance(found, dict) or found.get(name) != parts[name]]
        raise _broken(place, f"it was made for another {', '.join(other) or 'purpose'}")


def _check_size(path: Path, wanted: int) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise _broken(path.parent, f"{path.name} is missing") from None
    if size != wanted:
        raise _broken(path.parent, f"{path.name} has {size} bytes instead of {wanted}")


def _broken(folder: Path, reason: str) -> ValueError:
    return ValueError(f"the cache of the teacher's answers is damaged ({reason}): delete the folder {folder}")


def _write_at(file: FileIO, content: bytes, offset: int) -> None:
    file.seek(offset)
    while content:  # a disk may have room for a part of it; the next attempt then says why
        content = content[file.write(content) :]
