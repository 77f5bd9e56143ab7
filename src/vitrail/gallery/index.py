"""Finding the nearest of many: exactly, or approximately with an index of faiss."""

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.gallery.gallery_damage import damage

Kind = Literal["exact", "ivf", "hnsw"]
INDEXES = ("exact", "ivf", "hnsw", "auto")
_FEW, _MANY = 200_000, 1_000_000  # images up to which "auto" is exact, and up to which it is HNSW
_BLOCK = 65_536  # vectors that are handed to faiss at a time
_LINKS, _BUILD_EFFORT, _SEARCH_EFFORT = 32, 80, 128  # of HNSW
_PER_LIST = 39  # vectors that faiss wants for each list of IVF to be trained with
_PROBED_SHARE, _LEAST_PROBED = 1 / 32, 16  # lists of IVF that a search looks into


def choose_index(name: str, *, num_images: int) -> Kind:
    """exact, ivf or hnsw; "auto" goes by the number of images, and is exact where faiss is missing."""
    if name not in INDEXES:
        raise ValueError(f"index must be one of {', '.join(INDEXES)}, not {name!r}")
    if name != "auto":
        if name != "exact":
            load_faiss()
        return cast(Kind, name)
    if num_images <= _FEW or not has_faiss():
        return "exact"
    return "hnsw" if num_images <= _MANY else "ivf"


def has_faiss() -> bool:
    """Whether faiss is installed."""
    try:
        load_faiss()
    except ValueError:
        return False
    return True


def load_faiss() -> Any:
    """The library; a message that says how to get it where it is missing."""
    try:
        import faiss
    except ImportError:
        raise ValueError(
            "an approximate index needs faiss: pip install 'vitrail[gallery]', or use index=exact"
        ) from None
    return faiss


def write_index(kind: str, vectors: Tensor, path: Path) -> None:
    """An index of vectors of length 1 by their inner products, in a new file."""
    faiss = load_faiss()
    dim = vectors.shape[1]
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = _BUILD_EFFORT, _SEARCH_EFFORT
    else:
        num_lists = max(1, min(round(4 * len(vectors) ** 0.5), len(vectors) // _PER_LIST))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, num_lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # a small gallery is no reason to warn
        index.nprobe = min(num_lists, max(_LEAST_PROBED, round(_PROBED_SHARE * num_lists)))
        generator = torch.Generator().manual_seed(0)
        sample = torch.randperm(len(vectors), generator=generator)[: 64 * num_lists]
        index.train(_as_array(vectors[sample]))
    for start in range(0, len(vectors), _BLOCK):
        index.add(_as_array(vectors[start : start + _BLOCK]))
    faiss.write_index(index, str(path))


class ApproximateIndex:
    """An index that was written before."""

    def __init__(self, path: Path, *, count: int, dim: int) -> None:
        faiss = load_faiss()
        try:
            self._index = faiss.read_index(str(path))
        except (RuntimeError, MemoryError):
            raise ValueError("faiss can't read it") from None
        if (self._index.ntotal, self._index.d) != (count, dim):
            raise ValueError("it is of other images")
        self._path = path

    def search(self, queries: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and places [queries, count], nearest first; -inf and -1 where fewer were found."""
        cosines, places = self._index.search(_as_array(queries), count)
        found = torch.from_numpy(places)
        if bool((found >= self._index.ntotal).any()):
            raise damage(self._path.parent, self._path.name, " finds images that there are not")
        return torch.from_numpy(cosines).masked_fill(found < 0, -torch.inf), found


def _as_array(vectors: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors.float().numpy())
