"""Files of a gallery's images: embeddings, labels, paths and thumbnails, written once and never changed."""

import errno
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.gallery.gallery_damage import compare, damage, hash_content
from vitrail.gallery.gallery_manifest import Manifest, PartEntry
from vitrail.gallery.image_rows import Rows
from vitrail.storage.tensors import write_tensors

_BLOCK = 65_536  # embeddings that are checked at a time
_TOLERANCE = 0.01  # of their lengths: those in half precision are off by 0.001


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
    return PartEntry(file=path.name, count=len(rows), size=path.stat().st_size, sha256=hash_content(path))


def read_part(folder: Path, part: PartEntry, manifest: Manifest) -> StoredPart:
    """The images of a file; FileNotFoundError where another process has replaced it meanwhile."""
    path = folder / part.file
    try:
        is_new = compare(path, size=part.size, sha256=part.sha256)
        found = _open(path)
        _check_shapes(found, part, manifest)
        if is_new:
            _check_values(found, manifest)
    except OSError as error:
        error.filename = str(path)  # which safetensors leaves out
        raise
    except (SafetensorError, RuntimeError, ValueError) as error:
        if not path.exists():  # it went after it was compared: safetensors and torch say so in their own ways
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        raise damage(folder, part.file, f": {' '.join(str(error).split())}") from None
    return found


def _open(path: Path) -> StoredPart:
    with safe_open(path, framework="pt") as file:
        names = ("vectors", "labels", "thumbnails", "thumbnail_ends")
        vectors, labels, thumbnails, ends = map(file.get_tensor, names)
        paths = _unpack(file.get_tensor("paths"), file.get_tensor("path_ends"))
    return StoredPart(vectors, labels, paths, thumbnails, ends)


def _check_shapes(found: StoredPart, part: PartEntry, manifest: Manifest) -> None:
    if found.vectors.shape != (part.count, manifest.dim) or found.labels.shape != (part.count, len(manifest.levels)):
        raise ValueError("its embeddings or labels are not those that are listed")
    if found.vectors.dtype not in (torch.float32, torch.float16) or found.labels.dtype != torch.int32:
        raise ValueError("its embeddings or labels are of another kind than a gallery's")
    if len(found.paths) != part.count or found._ends.shape != (part.count,):
        raise ValueError("its paths or thumbnails are not as many as its images")
    classes = torch.tensor([len(names) for names in manifest.levels.values()])
    if bool((found.labels >= classes).any()) or bool((found.labels < -1).any()):
        raise ValueError("it has labels that are not listed")


def _check_values(found: StoredPart, manifest: Manifest) -> None:
    for block in found.vectors.split(_BLOCK):
        if not bool((block.float().norm(dim=1) <= 1.0 + _TOLERANCE).all()):  # false for what is no number, too
            raise ValueError("it has embeddings that are no numbers, or not of length 1")
    _check_ends(found._ends, len(found._thumbnails))


def _check_ends(ends: Tensor, size: int) -> None:
    """Refuse ends of texts that don't follow each other up to the last."""
    bounds = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), size)])
    if ends.dtype != torch.int64 or bool((bounds.diff() < 0).any()) or int(bounds[-2]) != size:
        raise ValueError("its texts or thumbnails do not end where they should")


def _pack(texts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Texts one behind the other, and where each ends."""
    joined = np.frombuffer(b"".join(texts), dtype=np.uint8).copy()
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return torch.from_numpy(joined), torch.from_numpy(ends)


def _unpack(joined: Tensor, ends: Tensor) -> tuple[str, ...]:
    _check_ends(ends, len(joined))
    whole = joined.numpy().tobytes()
    bounds = [0, *ends.tolist()]
    pairs = itertools.pairwise(bounds)
    return tuple(whole[start:end].decode("utf-8", "surrogateescape") for start, end in pairs)
