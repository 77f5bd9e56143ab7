"""Writing one tar shard: members that are the same bytes on every machine, and the index that belongs to them."""

import json
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.contract import Dataset, Level
from vitrail.data.sources.shard_index import VERSION, LabelValue, ShardIndex, fingerprint_ends

_BLOCK = 512
_STARTS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"P5", "pgm"),
    (b"P6", "ppm"),
    (b"\0\0\0\x0cjP  ", "jp2"),
)
_BRANDS = {b"avif": "avif", b"avis": "avif"}  # of files that begin with a box `ftyp`; other brands are HEIC's


@dataclass(frozen=True)
class WrittenShard:
    """A shard that is written."""

    size: int
    key: dict[str, Any]  # what its index says of which shard it is
    index: ShardIndex


def write_shard(path: Path, dataset: Dataset, samples: Iterable[int]) -> WrittenShard:
    """Write samples of a data set into a tar file; images keep their bytes, pixels become PNG, which keeps them."""
    writer = _Writer(path)
    with writer.file:
        for sample in samples:
            writer.add(dataset, int(sample))
        writer.finish()
    size = path.stat().st_size
    with path.open("rb") as file:

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        fingerprint = fingerprint_ends(size, read)
    levels = dict.fromkeys(["label", *(level for values in writer.labels for level in values)])
    index = ShardIndex(
        names=writer.names,
        offsets=writer.offsets,
        sizes=writer.sizes,
        labels={level: [values.get(level) for values in writer.labels] for level in levels},
        num_without_image=0,
        sums=writer.sums,
    )
    return WrittenShard(size, {"version": VERSION, "size": size, "fingerprint": fingerprint}, index)


class _Writer:
    """The members of a shard so far."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.names: list[str] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.sums: list[int] = []
        self.labels: list[dict[str, LabelValue]] = []

    def add(self, dataset: Dataset, sample: int) -> None:
        """Add an image with its labels."""
        try:
            data, extension = _encode(dataset.read(sample))
        except OSError as error:
            raise ValueError(
                f"{dataset.locate(sample)} can't be read ({error.strerror or error}): repair it, or leave it out with "
                "quarantine=FILE, which `vitrail check` writes"
            ) from None
        stem = f"{sample:09d}"
        self.names.append(f"{stem}.{extension}")
        self.offsets.append(self._member(self.names[-1], data))
        self.sizes.append(len(data))
        self.sums.append(zlib.crc32(data))
        labels = _labels_of(dataset.levels, sample)
        self.labels.append(labels)
        if "label" in labels:
            self._member(f"{stem}.cls", str(labels["label"]).encode())
        others = {name: value for name, value in labels.items() if name != "label"}
        if others:
            self._member(f"{stem}.json", json.dumps(others, sort_keys=True).encode())

    def _member(self, name: str, data: bytes) -> int:
        """Append a file; the place of its first byte."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), 0o644
        self.file.write(member.tobuf(tarfile.USTAR_FORMAT))
        offset = self.file.tell()
        self.file.write(data + bytes(-len(data) % _BLOCK))
        return offset

    def finish(self) -> None:
        """Write tar's closing blocks."""
        self.file.write(bytes(2 * _BLOCK))


def _labels_of(levels: Mapping[str, Level], sample: int) -> dict[str, LabelValue]:
    """The class number of the first level, and the class names of the others."""
    values: dict[str, LabelValue] = {}
    for place, (name, level) in enumerate(levels.items()):
        number = int(level.labels[sample])
        if number >= 0:
            values["label" if place == 0 else name] = number if place == 0 else level.classes[number]
    return values


def _encode(stored: bytes | np.ndarray) -> tuple[bytes, str]:
    """The bytes of an image and the extension of their format."""
    if isinstance(stored, np.ndarray):
        buffer = BytesIO()
        pixels = stored[..., 0] if stored.ndim == 3 and stored.shape[2] == 1 else stored
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
        return buffer.getvalue(), "png"
    if stored[4:8] == b"ftyp":
        return stored, _BRANDS.get(stored[8:12], "heic")
    if stored[:4] == b"RIFF" and stored[8:12] == b"WEBP":
        return stored, "webp"
    return stored, next((extension for start, extension in _STARTS if stored.startswith(start)), "jpg")
