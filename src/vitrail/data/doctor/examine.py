"""One pass over every sample of every split: read, decode in full, measure; what fails is noted, not raised."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from vitrail.data.contract import Dataset
from vitrail.data.decode import BrokenImageError, ImageTooLargeError, UnreadFormatError, open_image
from vitrail.data.doctor import image_fingerprints
from vitrail.data.loader import keep_whole, use_one_thread

# What is kept of each sample: less than a kilobyte, so a million fit into memory.
RECORD = np.dtype(
    [
        ("is_whole", np.bool_),  # it could be read and decoded; if not, nothing else is filled in
        ("height", np.uint32),
        ("width", np.uint32),
        ("format", "S8"),  # "JPEG", "PNG" ...
        ("mode", "S8"),  # as stored: "RGB", "L", "CMYK" ...; "16 bit", "32 bit", "float" for more than eight bits
        ("is_animated", np.bool_),
        ("is_turned", np.bool_),  # by its EXIF orientation
        ("is_blank", np.bool_),  # of a single colour
        ("digest", np.uint64),
        ("look", np.uint64),
        ("thumbnail", np.uint8, (image_fingerprints.THUMBNAIL, image_fingerprints.THUMBNAIL, 3)),
    ]
)
_CHUNK = 32  # samples that a worker takes at once
_BLANK_RANGE = 8  # levels between the darkest and the brightest value: what JPEG makes of a single colour


_PROBLEMS = {ImageTooLargeError: "decompression bomb", UnreadFormatError: "unread format"}


class Failure(NamedTuple):
    """Why a sample could not be read, or what is wrong with its mask or its objects."""

    problem: str  # "broken file", "unreadable file", "unread format", "decompression bomb" ...
    detail: str


class Marks(NamedTuple):
    """What was seen of the mask or the objects of one image."""

    present: frozenset[int]  # places of the classes that are marked in it
    faults: tuple[Failure, ...]


class Look(Protocol):
    """Looks at the mask or the objects of an image of that height and width; it runs in workers, and never raises."""

    def __call__(self, dataset: Dataset, index: int, size: tuple[int, int]) -> Marks: ...


@dataclass(frozen=True, eq=False)
class ExaminedSplit:
    """A split with what was measured of each sample."""

    dataset: Dataset
    records: np.ndarray  # RECORD [samples]
    failures: dict[int, Failure]  # by index
    marks: dict[int, Marks] = field(default_factory=dict)  # by index, of images with masks or objects

    @property
    def split(self) -> str:
        return self.dataset.split


@dataclass(frozen=True, eq=False)
class Examination:
    """All splits; the records of each are a part of one block, as copies of them would fill the memory."""

    splits: tuple[ExaminedSplit, ...]
    records: np.ndarray  # RECORD [samples of all splits], split after split


def examine_splits(
    datasets: Sequence[Dataset],
    *,
    num_workers: int,
    progress: Callable[[int, int], None] | None = None,
    look: Look | None = None,
) -> Examination:
    """Read every sample of all the data sets; `progress` hears how many are done, and of how many.

    `look` also sees the mask or the objects of every image that could be decoded.
    """
    ends = list(accumulate(map(len, datasets)))
    records = np.zeros(sum(map(len, datasets)), RECORD)
    splits = tuple(
        ExaminedSplit(dataset, records[end - len(dataset) : end], {})
        for dataset, end in zip(datasets, ends, strict=True)
    )
    done = 0
    for chunk in _examine_chunks(datasets, num_workers=num_workers, look=look):
        split = splits[chunk.place]
        split.records[chunk.start : chunk.start + len(chunk.records)] = chunk.records
        split.failures.update(chunk.failures)
        split.marks.update(chunk.marks)
        done += len(chunk.records)
        if progress is not None:
            progress(done, len(records))
    return Examination(splits, records)


class _Chunk(NamedTuple):
    """A chunk of records that a worker has measured and sends."""

    place: int  # of the data set
    start: int
    records: np.ndarray
    failures: dict[int, Failure]
    marks: dict[int, Marks]


def _examine_chunks(datasets: Sequence[Dataset], *, num_workers: int, look: Look | None) -> Iterator[_Chunk]:
    examiner = _Examiner(datasets, look)
    if not len(examiner):
        return
    # Workers of PyTorch's loader and not of a plain process pool: whatever can be trained on can be checked as well.
    yield from DataLoader(
        examiner,
        batch_size=None,
        collate_fn=keep_whole,
        num_workers=min(num_workers, len(examiner)),
        prefetch_factor=4 if num_workers else None,
        worker_init_fn=use_one_thread,
    )


class _Examiner(TorchDataset):
    """Measures chunk after chunk: what runs in the workers."""

    def __init__(self, datasets: Sequence[Dataset], look: Look | None) -> None:
        self.datasets, self.look = datasets, look
        self.chunks = [
            (place, start) for place, dataset in enumerate(datasets) for start in range(0, len(dataset), _CHUNK)
        ]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> _Chunk:
        place, start = self.chunks[number]
        dataset = self.datasets[place]
        records = np.zeros(min(_CHUNK, len(dataset) - start), RECORD)
        failures, marks = {}, {}
        for offset in range(len(records)):
            failure = _measure(dataset, start + offset, record=records[offset])
            if failure is not None:
                failures[start + offset] = failure
            elif self.look is not None:
                size = int(records[offset]["height"]), int(records[offset]["width"])
                marks[start + offset] = self.look(dataset, start + offset, size)
        return _Chunk(place, start, records, failures, marks)


def _measure(dataset: Dataset, index: int, *, record: np.void) -> Failure | None:
    """Fill in the record, or say why that is impossible."""
    try:
        data = dataset.read(index)
    except Exception as error:  # a source may fail in any way, and no way may end the examination
        return Failure("unreadable file", _describe(error))
    try:
        image = open_image(data)
        pixels = image.pixels().permute(1, 2, 0).contiguous().numpy()
    except BrokenImageError as error:
        return Failure(_PROBLEMS.get(type(error), "broken file"), str(error))
    except Exception as error:
        return Failure("broken file", f"cannot be decoded: {_describe(error)}")
    small = image_fingerprints.shrink(pixels)
    record["height"], record["width"] = image.height, image.width
    record["format"], record["mode"] = image.format.encode(), _mode_of(image.mode, image.format, data).encode()
    record["is_animated"], record["is_turned"] = image.is_animated, image.orientation != 1
    record["is_blank"] = _is_blank(small) and _is_blank(pixels)
    record["digest"] = image_fingerprints.digest_pixels(pixels)
    record["look"] = image_fingerprints.describe_look(small)
    record["thumbnail"] = image_fingerprints.thumbnail_of(small)
    record["is_whole"] = True
    return None


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror[0].lower()}{error.strerror[1:]}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _mode_of(mode: str, image_format: str, data: bytes | np.ndarray) -> str:
    # Pillow calls a PNG of 16-bit colours "RGB": the number of bits stands in the header's 25th byte.
    is_deep_png = isinstance(data, bytes) and data[:4] == b"\x89PNG" and data[24:25] == b"\x10"
    if is_deep_png or mode.startswith("I;16"):
        return "16 bit"
    return {"F": "float", "I": "16 bit" if image_format in ("PNG", "PPM") else "32 bit"}.get(mode, mode)


def _is_blank(pixels: np.ndarray) -> bool:
    channels = pixels.reshape(-1, 3)
    return bool((channels.max(axis=0).astype(int) - channels.min(axis=0) <= _BLANK_RANGE).all())
