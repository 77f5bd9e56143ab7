"""Files of a gallery's images: embeddings, labels, paths and thumbnails, written once and never changed."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.gallery.gallery_manifest import Manifest, PartEntry
from vitrail.storage.tensors import write_tensors


@dataclass(frozen=True, eq=False)
class Rows:
    """Images of a gallery."""

    vectors: Tensor  # float32 or float16 [images, dim], of length 1
    labels: Tensor  # int32 [images, levels]; -1 without a label
    paths: tuple[str, ...]
    thumbnails: tuple[bytes, ...]  # JPEG; empty where there is none

    def __len__(self) -> int:
        return len(self.vectors)

    def choose(self, places: Sequence[int]) -> "Rows":
        """Some of the images."""
        at = torch.tensor(places, dtype=torch.int64)
        return Rows(
            self.vectors[at],
            self.labels[at],
            tuple(self.paths[place] for place in places),
            tuple(self.thumbnails[place] for place in places),
        )

    @classmethod
    def joined(cls, several: "Sequence[Rows]") -> "Rows":
        """The images of several, one after the other."""
        return cls(
            torch.cat([rows.vectors for rows in several]),
            torch.cat([rows.labels for rows in several]),
            tuple(path for rows in several for path in rows.paths),
            tuple(picture for rows in several for picture in rows.thumbnails),
        )


@dataclass(frozen=True, eq=False)
class StoredPart:
    """A file of images that is open: its vectors stay on disk until they are read, and so do its thumbnails."""

    vectors: Tensor
    labels: Tensor
    paths: tuple[str, ...]
    _thumbnails: Tensor  # uint8: all of them, one behind the other
    _ends: Tensor  # int64 [images]

    def __len__(self) -> int:
        return len(self.vectors)

    def thumbnail(self, place: int) -> bytes:
        """The thumbnail at a place, a JPEG; empty where there is none."""
        start = int(self._ends[place - 1]) if place else 0
        return self._thumbnails[start : int(self._ends[place])].numpy().tobytes()

    def rows(self) -> Rows:
        """All images of the file, in memory."""
        thumbnails = tuple(self.thumbnail(place) for place in range(len(self)))
        return Rows(self.vectors, self.labels, self.paths, thumbnails)


def write_part(rows: Rows, path: Path) -> PartEntry:
    """Write images to a new file."""
    paths, path_ends = _pack([text.encode("utf-8", "surrogateescape") for text in rows.paths])
    thumbnails, thumbnail_ends = _pack(rows.thumbnails)
    tensors = {
        "vectors": rows.vectors.contiguous(),
        "labels": rows.labels.to(torch.int32).contiguous(),
        "paths": paths,
        "path_ends": path_ends,
        "thumbnails": thumbnails,
        "thumbnail_ends": thumbnail_ends,
    }
    write_tensors(tensors, path)
    return PartEntry(file=path.name, count=len(rows), size=path.stat().st_size)


def read_part(folder: Path, part: PartEntry, manifest: Manifest) -> StoredPart:
    """The images of a file; FileNotFoundError where another process has replaced it meanwhile."""
    path = folder / part.file
    size = path.stat().st_size
    try:
        if size != part.size:
            raise ValueError(f"it has {size:,} bytes instead of {part.size:,}")
        with path.open("rb"):  # says what is wrong, where safetensors says that there is no file
            pass
        with safe_open(path, framework="pt") as file:
            names = ("vectors", "labels", "thumbnails", "thumbnail_ends")
            vectors, labels, thumbnails, ends = map(file.get_tensor, names)
            paths = _unpack(file.get_tensor("paths"), file.get_tensor("path_ends"))
        if vectors.shape != (part.count, manifest.dim) or labels.shape != (part.count, len(manifest.levels)):
            raise ValueError("its embeddings or labels are not those that are listed")
        if len(paths) != part.count or len(ends) != part.count:
            raise ValueError("its paths or thumbnails are not as many as its images")
        classes = torch.tensor([len(names) for names in manifest.levels.values()])
        if bool((labels >= classes).any()) or bool((labels < -1).any()):
            raise ValueError("it has labels that are not listed")
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"the gallery {folder} is damaged: {part.file}: {error}") from None
    return StoredPart(vectors, labels, paths, thumbnails, ends)


def _pack(texts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Texts one behind the other, and where each ends."""
    joined = np.frombuffer(b"".join(texts), dtype=np.uint8).copy()
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return torch.from_numpy(joined), torch.from_numpy(ends)


def _unpack(joined: Tensor, ends: Tensor) -> tuple[str, ...]:
    whole = joined.numpy().tobytes()
    bounds = [0, *ends.tolist()]
    pairs = itertools.pairwise(bounds)
    return tuple(whole[start:end].decode("utf-8", "surrogateescape") for start, end in pairs)
