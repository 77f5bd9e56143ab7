"""From any data to tar shards: what goes where is decided first, so that writing can stop, go on and be shared."""

import contextlib
import json
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.contract import Dataset
from vitrail.data.draws import Draws
from vitrail.data.remote.addresses import check_address, is_address
from vitrail.data.remote.objects import look_at, read_object, require_writing, write_object
from vitrail.data.shard_files import WrittenShard, write_shard
from vitrail.data.sources.remote_patterns import LIST_NAME
from vitrail.data.sources.shard_index import VERSION, index_text
from vitrail.data.sources.shard_patterns import INDEX_SUFFIX
from vitrail.storage import hash_text, locked, parse_json, replacing, write_text

CLASSES_NAME = "classes.json"
_NUM_WEIGHED = 64  # samples of a split that the number of samples in a shard is estimated from
_MAX_SAMPLES = 1_000_000  # of a shard
_MAX_INDEX_BYTES = 1 << 29


@dataclass(frozen=True)
class ShardMaking:
    """How shards are to be made."""

    samples: int | None = None  # in a shard; None: as many as make about `megabytes`
    megabytes: float = 256.0
    shuffle: bool = True  # mix the samples of a split over its shards: training shuffles 16 shards at a time
    seed: int = 0
    workers: int = 4  # shards that are written side by side


@dataclass(frozen=True)
class MadeShards:
    """What was made."""

    place: str
    num_samples: dict[str, int]  # of each split
    num_shards: dict[str, int]
    num_bytes: int
    num_kept: int  # shards that were there already
    seconds: float


@dataclass(frozen=True)
class _Task:
    """One shard to be written."""

    name: str
    dataset: Dataset
    samples: np.ndarray
    made: str  # a fingerprint of what the shard is made of and how


def make_shards(
    datasets: Sequence[Dataset], *, out: str, how: ShardMaking, note: Callable[[int, int], None] | None = None
) -> MadeShards:
    """Write the shards of all splits, those that are there and the same left out; `note` hears how many are done.

    `out` is a folder or an address. The list of shards, by which `shards:OUT/shards.json` opens them, is written last:
    where it is, everything is.
    """
    began = time.monotonic()
    _check(datasets)
    with _open_target(out) as target:
        tasks = [task for dataset in datasets for task in _plan(dataset, how)]
        entries: dict[str, dict[str, Any]] = {}
        num_kept = 0
        with ThreadPoolExecutor(max(1, how.workers), "vitrail shards") as pool:
            there = dict(zip((task.name for task in tasks), pool.map(target.size_of, tasks), strict=True))
            waiting = {pool.submit(_make, task, target, there[task.name]): task for task in tasks}
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        task = waiting.pop(future)
                        size, is_kept = future.result()
                        num_kept += is_kept
                        entries[task.name] = {
                            "name": task.name,
                            "split": task.dataset.split,
                            "samples": len(task.samples),
                            "bytes": size,
                        }
                        if note is not None:
                            note(len(entries), len(tasks))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if datasets[0].levels:
            target.write_text(CLASSES_NAME, json.dumps(list(datasets[0].level().classes), indent=1) + "\n")
        listed = {"format": 1, "shards": [entries[task.name] for task in tasks]}
        target.write_text(LIST_NAME, json.dumps(listed, indent=1) + "\n")
    return MadeShards(
        place=out,
        num_samples={dataset.split: len(dataset) for dataset in datasets},
        num_shards={
            dataset.split: sum(entry["split"] == dataset.split for entry in entries.values()) for dataset in datasets
        },
        num_bytes=sum(entry["bytes"] for entry in entries.values()),
        num_kept=num_kept,
        seconds=time.monotonic() - began,
    )


def _check(datasets: Sequence[Dataset]) -> None:
    for dataset in datasets:
        if any(level.is_multiple for level in dataset.levels.values()):
            raise ValueError(f"{dataset.name} has images with several labels, which tar shards have no place for")
        if len(dataset) == 0:
            raise ValueError(f"the split {dataset.split} of {dataset.name} is empty")


def _plan(dataset: Dataset, how: ShardMaking) -> Iterator[_Task]:
    """The shards of a split: the same for the same data and settings, wherever and how often it is asked."""
    num_samples = how.samples or _estimate(dataset, how.megabytes)
    order = np.arange(len(dataset))
    if how.shuffle:
        order = Draws(how.seed, "shards", dataset.split).array().permutation(len(dataset))
    levels = [[name, level.classes, level.labels.tolist()] for name, level in dataset.levels.items()]
    content = [[dataset.locate(index) for index in range(len(dataset))], levels, order.tolist(), num_samples, VERSION]
    made = hash_text(json.dumps(content))
    num_shards = -(-len(dataset) // num_samples)
    for number in range(num_shards):
        yield _Task(
            name=f"{dataset.split}-{number:06d}.tar",
            dataset=dataset,
            samples=order[number * num_samples : (number + 1) * num_samples],
            made=f"{made}-{number}",
        )


def _estimate(dataset: Dataset, megabytes: float) -> int:
    """How many samples make a shard of about so many megabytes, by some of them."""
    places = np.unique(np.linspace(0, len(dataset) - 1, num=_NUM_WEIGHED).astype(int))
    sizes = []
    for place in places:
        with contextlib.suppress(OSError):
            stored = dataset.read(int(place))
            sizes.append(len(stored) if isinstance(stored, bytes) else stored.nbytes)
    mean = max(1.0, float(np.mean(sizes))) if sizes else 1e5
    return int(min(_MAX_SAMPLES, max(1, round(1e6 * megabytes / mean))))


def _make(task: _Task, target: "_Target", size: int | None) -> tuple[int, bool]:
    """Write one shard, unless it is there; its bytes, and whether it was."""
    return (target.put(task), False) if size is None else (size, True)


class _Target(ABC):
    """Where shards are written. All are looked for before the first one is written."""

    @abstractmethod
    def size_of(self, task: _Task) -> int | None:
        """The bytes of a shard that is there whole; None if it has to be written."""

    @abstractmethod
    def put(self, task: _Task) -> int:
        """Write a shard, then its index, which says that it is whole; its bytes."""

    @abstractmethod
    def write_text(self, name: str, text: str) -> None:
        """Write a small file beside the shards."""


@contextlib.contextmanager
def _open_target(out: str) -> Iterator[_Target]:
    if is_address(out):
        require_writing(check_address(out))
        with tempfile.TemporaryDirectory(prefix="vitrail-shards-") as folder:
            yield _Bucket(check_address(out).rstrip("/"), Path(folder))
        return
    folder_out = Path(out).expanduser()
    try:
        folder_out.mkdir(parents=True, exist_ok=True)
        with locked(folder_out / ".lock", patience=0.0):
            yield _Folder(folder_out)
    except BlockingIOError:
        raise ValueError(f"another process writes shards into {out} just now") from None
    except OSError as error:
        raise ValueError(f"{error.filename or out} can't be written ({error.strerror or error})") from None


class _Folder(_Target):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def size_of(self, task: _Task) -> int | None:
        path, index = self.folder / task.name, self.folder / f"{task.name}{INDEX_SUFFIX}"
        if not path.exists() and not index.exists():
            return None
        size = _size_in(index.read_bytes() if index.exists() else b"", task, place=str(path), is_there=path.exists())
        return size if size is not None and path.exists() and path.stat().st_size == size else None

    def put(self, task: _Task) -> int:
        path = self.folder / task.name
        with replacing(path) as draft:
            written = write_shard(draft, task.dataset, task.samples)
        changed = {"modified": path.stat().st_mtime_ns}
        write_text(self.folder / f"{task.name}{INDEX_SUFFIX}", _text_of(written, task, changed))
        return written.size

    def write_text(self, name: str, text: str) -> None:
        write_text(self.folder / name, text)


class _Bucket(_Target):
    """An address; shards are written to this disk first, and go as soon as they are there."""

    def __init__(self, address: str, drafts: Path) -> None:
        self.address, self.drafts = address, drafts

    def size_of(self, task: _Task) -> int | None:
        address = f"{self.address}/{task.name}"
        try:
            content = read_object(f"{address}{INDEX_SUFFIX}", most=_MAX_INDEX_BYTES)
        except FileNotFoundError:
            content = b""
        try:
            mark = look_at(address)
        except FileNotFoundError:
            return None
        size = _size_in(content, task, place=address, is_there=True)
        return size if size == mark.size else None

    def put(self, task: _Task) -> int:
        path = self.drafts / task.name
        try:
            written = write_shard(path, task.dataset, task.samples)
            mark = write_object(f"{self.address}/{task.name}", path)
        finally:
            path.unlink(missing_ok=True)
        self.write_text(f"{task.name}{INDEX_SUFFIX}", _text_of(written, task, {"tag": mark.tag}))
        return written.size

    def write_text(self, name: str, text: str) -> None:
        path = self.drafts / name
        path.write_text(text, encoding="utf-8")
        write_object(f"{self.address}/{name}", path)
        path.unlink()


def _text_of(written: WrittenShard, task: _Task, where: dict[str, Any]) -> str:
    return index_text(written.index, {**written.key, **where, "made": task.made})


def _size_in(content: bytes, task: _Task, *, place: str, is_there: bool) -> int | None:
    """The length that the index of a shard states; None if the shard is to be written again.

    A shard that was made of something else is not written over: it may be all that somebody has.
    """
    found: Any = None
    if content:
        with contextlib.suppress(ValueError):
            found = parse_json(content)
    found = found if isinstance(found, dict) else {}
    if found.get("made") == task.made:
        return found.get("size") if isinstance(found.get("size"), int) else None
    if is_there and (found.get("made") is not None or found.get("index") is not None):
        raise ValueError(
            f"{place} is there and holds other data, or was made with other settings: give another out=, or remove it"
        )
    return None
