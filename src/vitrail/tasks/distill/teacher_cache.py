"""A teacher's answers on disk: for a fixed number of views of each image, read and written through shared memory."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import Augmentation
from vitrail.data.contract import Dataset
from vitrail.storage import describe_settings, hash_text, read_json, write_json
from vitrail.storage.whole import draft_beside

PARTS_FILE, KNOWN_FILE, ANSWERS_FILE = "cache.json", "known.bin", "answers.bin"
_FORMAT = 1  # of the files; part of the key
_LOWEST = -6e4  # the logarithm of a probability of zero, in float16
_NUM_READ = 256  # samples whose content goes into the fingerprint of data


class TeacherCache:
    """What a teacher said about each view of each sample: its most likely classes and the probability of the rest.

    Answers are kept in float16 and used as they are kept, also when they are fresh: a run does not depend on which of
    them it found. Several processes may read and write one cache. An answer is marked as known once it is written in
    full, so that a process may end at any point.
    """

    def __init__(self, folder: Path, *, shape: tuple[int, int], num_classes: int, top: int) -> None:
        self.folder, self.num_classes = folder, num_classes
        self._record = _record_of(num_classes, top)
        _check_size(folder / KNOWN_FILE, shape[0] * shape[1])
        _check_size(folder / ANSWERS_FILE, shape[0] * shape[1] * self._record.itemsize)
        try:
            # Read as memory, written as files: a write to memory that the full disk has no room for ends the process.
            self._known = np.memmap(folder / KNOWN_FILE, dtype=np.uint8, mode="r", shape=shape)
            self._answers = np.memmap(folder / ANSWERS_FILE, dtype=self._record, mode="r", shape=shape)
        except OSError as error:
            raise _broken(folder, error.strerror or str(error)) from None

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        teacher: str,
        data: str,
        augmentation: str,
        num_samples: int,
        num_views: int,
        num_classes: int,
        top: int = 10,
    ) -> "TeacherCache":
        """The cache in a subfolder of `folder` that all of these decide; an empty one where there is none yet.

        `teacher`, `data` and `augmentation` are fingerprints: with any other one nothing old is ever read.
        """
        counts = {"num_samples": num_samples, "num_views": num_views, "num_classes": num_classes, "top": top}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"a teacher's cache needs {name} of at least 1, not {count}")
        top = min(top, num_classes)
        parts: dict[str, Any] = {"format": _FORMAT, "teacher": teacher, "data": data, "augmentation": augmentation}
        parts |= counts | {"top": top}
        key = hash_text(json.dumps(parts, sort_keys=True), size=12)
        place, shape = folder.expanduser() / key, (num_samples, num_views)
        if not place.is_dir():
            _create(place, parts, num_answers=num_samples * num_views, size=_record_of(num_classes, top).itemsize)
        _check_parts(place, parts)
        return cls(place, shape=shape, num_classes=num_classes, top=top)

    def lookup(self, indices: Tensor, views: Tensor) -> Tensor:
        """Which answers are known: bool [batch], on the CPU."""
        return torch.from_numpy(self._known[self._places(indices, views)] != 0)

    def write(self, indices: Tensor, views: Tensor, logits: Tensor) -> None:
        """Keep answers, given as logits [batch, classes]."""
        if logits.shape != (len(indices), self.num_classes):
            wanted = [len(indices), self.num_classes]
            raise ValueError(f"the cache takes a teacher's answers {wanted}, not {list(logits.shape)}")
        logs = logits.detach().float().log_softmax(dim=-1)
        if logs.isnan().any():
            raise ValueError("the teacher's answers are not finite: they are not kept, and can't be learnt from")
        top, classes = logs.topk(self._record["classes"].shape[0], dim=-1)
        rest = logs.scatter(1, classes, -torch.inf).logsumexp(dim=-1, keepdim=True)
        answers = np.zeros(len(logits), dtype=self._record)
        answers["classes"] = classes.cpu().numpy()
        answers["log_probabilities"] = torch.cat([top, rest], dim=-1).clamp(min=_LOWEST).cpu().numpy()
        rows, columns = self._places(indices, views)
        places = (rows * self._known.shape[1] + columns).tolist()
        try:
            with (self.folder / ANSWERS_FILE).open("r+b", buffering=0) as file:
                for place, answer in zip(places, answers, strict=True):
                    _write_at(file, answer.tobytes(), place * self._record.itemsize)
            with (self.folder / KNOWN_FILE).open("r+b", buffering=0) as file:
                for place in places:
                    _write_at(file, b"\x01", place)
        except OSError as error:
            raise ValueError(
                f"the teacher's answers can't be kept ({error.strerror}): make room, or delete the folder "
                f"{self.folder} and train without teacher.cache"
            ) from None

    def read(self, indices: Tensor, views: Tensor, *, device: torch.device | None = None) -> Tensor:
        """Known answers: log-probabilities float32 [batch, classes], on the device of the indices unless one is given.

        The most likely classes are as stored; what is left is spread evenly over the others.
        """
        places = self._places(indices, views)
        if not self._known[places].all():
            raise ValueError(f"{self.folder} has no answer yet to some of these images")
        answers = self._answers[places]
        device = indices.device if device is None else device
        classes = torch.from_numpy(answers["classes"].astype(np.int64)).to(device)
        logs = torch.from_numpy(answers["log_probabilities"].astype(np.float32)).to(device)
        top, rest = logs[:, :-1], logs[:, -1:]
        num_others = max(self.num_classes - top.shape[1], 1)
        # None of them is likelier than the least of those that are stored; rounding could say otherwise.
        others = torch.minimum(rest - float(np.log(num_others)), top[:, -1:])
        return others.repeat(1, self.num_classes).scatter_(1, classes, top)

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
        depend on which images it is asked about together, so that two caches that were filled in another order may
        differ by a rounding; a cache never changes an answer that it has.
        """
        unknown = (~self.lookup(indices, views)).nonzero().flatten()
        if len(unknown):
            images = pixels()
            logits = teacher(images if len(unknown) == len(indices) else images[unknown.to(images.device)])
            chosen = unknown.to(indices.device)
            self.write(indices[chosen], views[unknown.to(views.device)], logits)
        return self.read(indices, views, device=device)

    def describe(self) -> str:
        """One line for a log."""
        num_known, size = int(np.count_nonzero(self._known)), self._known.size
        megabytes = size * (1 + self._record.itemsize) / 1e6
        return f"teacher's answers in {self.folder}: {num_known} of {size} known, {megabytes:.1f} MB when full"

    def _places(self, indices: Tensor, views: Tensor) -> tuple[np.ndarray, np.ndarray]:
        places = indices.cpu().numpy(), views.cpu().numpy()
        for values, limit, name in zip(places, self._known.shape, ("samples", "views"), strict=True):
            if values.size and (values.min() < 0 or values.max() >= limit):
                raise ValueError(f"{self.folder} is for {limit} {name}: {values.min()} ... {values.max()} is outside")
        return places


def default_folder() -> Path:
    """Where caches are kept: below `$VITRAIL_CACHE`, else below `~/.cache/vitrail`."""
    given = os.environ.get("VITRAIL_CACHE")
    return (Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail") / "teachers"


def fingerprint_data(dataset: Dataset) -> str:
    """A fingerprint of the samples in their order, wherever they lie: places, sizes, labels and some of the content.

    The places are relative to what they have in common, so that data may be moved. Every file's size is read, and the
    bytes of up to 256 samples: changing others in place, without a change of size, is not seen.
    """
    digest = hashlib.blake2b(f"{len(dataset)}\n".encode(), digest_size=16)
    places = [dataset.locate(index) for index in range(len(dataset))]
    common = os.path.commonprefix([min(places), max(places)])  # noqa: RUF071 (not all places are paths)
    start = max(common.rfind("/"), common.rfind(os.sep), common.rfind("!")) + 1
    archives: dict[str, int] = {}
    for place in places:
        digest.update(f"{place[start:]} {_size_of(place, archives)}\n".encode(errors="surrogateescape"))
    for name, level in sorted(dataset.levels.items()):
        digest.update(f"{name} {level.labels.shape}\n".encode())
        digest.update(np.ascontiguousarray(level.labels).tobytes())
    for index in np.unique(np.linspace(0, len(dataset) - 1, _NUM_READ).round().astype(int)).tolist():
        digest.update(_content_of(dataset, index))
    return digest.hexdigest()


def fingerprint_augmentation(augmentation: Augmentation, *, seed: int = 0) -> str:
    """A fingerprint of all settings of the views, and of the seed they are drawn with."""
    settings = augmentation.settings
    parts = settings.model_dump(exclude={"repeats"}, exclude_defaults=True)
    return hash_text(describe_settings([augmentation.image_size, parts, augmentation.own_steps, seed]))


def _record_of(num_classes: int, top: int) -> np.dtype:
    """How an answer is stored: the classes, their log-probabilities and, behind them, that of all others together."""
    number = np.uint16 if num_classes <= 2**16 else np.int32
    return np.dtype([("classes", number, (top,)), ("log_probabilities", np.float16, (top + 1,))])


def _create(place: Path, parts: dict[str, Any], *, num_answers: int, size: int) -> None:
    """Make an empty cache, whole or not at all; another process may do the same at the same time."""
    draft = draft_beside(place)
    try:
        draft.mkdir(parents=True)
        for name, length in ((KNOWN_FILE, num_answers), (ANSWERS_FILE, num_answers * size)):
            with (draft / name).open("wb") as file:
                file.truncate(length)  # takes room on the disk only where answers are written
        write_json(draft / PARTS_FILE, parts)
        draft.rename(place)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not place.is_dir():  # else the other process was faster
            raise ValueError(
                f"a cache of the teacher's answers can't be made in {place.parent} ({error.strerror}): make room, or "
                "set teacher.cache_folder or VITRAIL_CACHE to another folder"
            ) from None


def _check_parts(place: Path, parts: dict[str, Any]) -> None:
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


def _size_of(place: str, archives: dict[str, int]) -> int:
    """The size of the file at a place, or of the archive `archive!member` it is in; -1 where there is none."""
    try:
        return os.stat(place).st_size
    except (OSError, ValueError):
        archive = place.rpartition("!")[0]
    if archive not in archives:
        try:
            archives[archive] = os.stat(archive).st_size
        except (OSError, ValueError):
            archives[archive] = -1
    return archives[archive]


def _content_of(dataset: Dataset, index: int) -> bytes:
    try:
        content = dataset.read(index)
    except OSError:
        return b"unreadable"
    return content if isinstance(content, bytes) else f"{content.shape}".encode() + content.tobytes()
