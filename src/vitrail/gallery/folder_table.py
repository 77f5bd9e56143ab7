"""The images of a gallery's folder, as the table that is asked: vectors are read from the disk as they are needed."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from vitrail.evaluation.knn import find_neighbours
from vitrail.evaluation.ranking import Conditioning, predict_coarse
from vitrail.gallery.answer_rules import ClassMeans
from vitrail.gallery.folder_changes import take_rows
from vitrail.gallery.folder_files import State
from vitrail.gallery.gallery_damage import compare, damage
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.index import ApproximateIndex
from vitrail.gallery.store import ImageTable, Neighbours


class FolderTable(ImageTable):
    """All images of one state of a folder; an image's row is its place among them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.facts, self.place = state.manifest, str(state.folder)

    def __len__(self) -> int:
        return len(self.state)

    @cached_property
    def vectors(self) -> Tensor:
        """The embeddings [images, dim], of length 1; read from the disk where they are in one file."""
        parts = self.state.parts
        if not parts:
            return torch.zeros(0, self.facts.dim)
        return parts[0].vectors if len(parts) == 1 else torch.cat([part.vectors for part in parts])

    @cached_property
    def labels(self) -> Tensor:
        """The labels int64 [images, levels]; -1 without a label."""
        nothing = torch.zeros(0, len(self.facts.levels), dtype=torch.int32)
        return torch.cat([nothing, *(part.labels for part in self.state.parts)]).long()

    @cached_property
    def _sets(self) -> Mapping[tuple[int, ...], int]:
        return Counter(map(tuple, self.labels.tolist()))

    def label_sets(self) -> Mapping[tuple[int, ...], int]:
        """The combinations of labels, in the order of their first images."""
        return self._sets

    def nearest(self, queries: Tensor, *, count: int, bonus: Tensor | None = None) -> Neighbours:
        """The best images for each query. An approximate index serves only the cosine; else it is exact."""
        scores, rows = self._find(queries, count=min(count, len(self)), bonus=bonus)
        cosines = [self.vectors[own].float() @ query for own, query in zip(rows, queries, strict=True)]
        return Neighbours(scores, torch.stack(cosines) if cosines else torch.zeros(rows.shape), rows, self.labels[rows])

    def _find(self, queries: Tensor, *, count: int, bonus: Tensor | None) -> tuple[Tensor, Tensor]:
        if bonus is not None:
            conditioning = Conditioning(bonus, self._of(self.facts.coarse))
            return find_neighbours(queries, self.vectors, count=count, conditioning=conditioning)
        if self._index is None:
            return find_neighbours(queries, self.vectors, count=count)
        num_covered = self._num_covered
        cosines, rows = self._index.search(queries, count=min(count, num_covered))
        if bool((rows < 0).any()):  # it looks at too few images to find so many
            return find_neighbours(queries, self.vectors, count=count)
        if num_covered < len(self):  # images that were added since the index was made
            newest = self.vectors[num_covered:]
            more, places = find_neighbours(queries, newest, count=min(count, len(newest)))
            cosines, rows = torch.cat([cosines, more], dim=1), torch.cat([rows, places + num_covered], dim=1)
        cosines, order = cosines.topk(min(count, cosines.shape[1]), dim=1)
        return cosines, rows.gather(1, order)

    def coarse_probabilities(self, queries: Tensor) -> Tensor:
        """The probabilities by the votes of all images, block after block."""
        num_classes = len(self.facts.levels[str(self.facts.coarse)])
        return predict_coarse(queries, self.vectors, self._of(self.facts.coarse), num_classes=num_classes)

    def means(self, coarse: int | None = None) -> ClassMeans:
        """The means, summed once for all images, and each time for those of a coarse class."""
        if coarse is None:
            return self._means
        is_of = self._of(self.facts.coarse) == coarse
        fine, num_classes = self._of(self.facts.fine), len(self.facts.levels[self.facts.fine])
        return ClassMeans.of(self.vectors[is_of], fine[is_of], num_classes=num_classes, spread=self._means.spread)

    @cached_property
    def _means(self) -> ClassMeans:
        fine = self.facts.fine
        return ClassMeans.of(self.vectors, self._of(fine), num_classes=len(self.facts.levels[fine]))

    def find_rows(self, labels: Mapping[str, int], *, limit: int | None = None) -> Tensor:
        """The rows of images with these labels."""
        is_found = torch.ones(len(self), dtype=torch.bool)
        for level, label in labels.items():
            is_found &= self._of(level) == label
        return is_found.nonzero()[:limit, 0]

    def find_paths(self, paths: Collection[str]) -> list[int]:
        """The rows of images with these paths."""
        wanted = set(paths)
        found = (path for part in self.state.parts for path in part.paths)
        return [row for row, path in enumerate(found) if path in wanted]

    def labels_of(self, rows: Tensor) -> Tensor:
        """The labels of images."""
        return self.labels[rows]

    def vectors_of(self, rows: Tensor) -> Tensor:
        """The embeddings of images, as precise as they are kept; those of the very files where it is all of them."""
        if len(rows) == len(self) and bool((rows == torch.arange(len(self))).all()):
            return self.vectors
        return self.vectors[rows]

    def paths_of(self, rows: Sequence[int]) -> list[str]:
        """Where images were."""
        places = map(self._place, rows)
        return [self.state.parts[part].paths[place] for part, place in places]

    def thumbnails_of(self, rows: Sequence[int]) -> list[bytes]:
        """The thumbnails of images."""
        places = map(self._place, rows)
        return [self.state.parts[part].thumbnail(place) for part, place in places]

    def pages(self, *, after: int = -1, size: int) -> Iterator[tuple[int, Rows]]:
        """All images behind a row, some at a time."""
        for start in range(after + 1, len(self), size):
            end = min(start + size, len(self))
            yield end - 1, take_rows(self.state, range(start, end))

    def _of(self, level: str | None) -> Tensor:
        return self.labels[:, list(self.facts.levels).index(str(level))]

    @cached_property
    def _index(self) -> ApproximateIndex | None:
        """The approximate index; None where there is none, or another process has replaced it."""
        entry = self.state.manifest.index
        if entry is None:
            return None
        path = self.state.folder / entry.file
        try:
            compare(path, size=entry.size, sha256=entry.sha256)
            return ApproximateIndex(path, count=self._num_covered, dim=self.facts.dim)
        except FileNotFoundError:
            what = " is missing"
        except (OSError, ValueError) as error:
            what = f": {error.strerror if isinstance(error, OSError) else error}"
        if not path.exists() and self.state.is_replaced():
            return None
        raise damage(self.state.folder, entry.file, what)

    @cached_property
    def _num_covered(self) -> int:
        """Images that the index knows: those of the first parts."""
        entry = self.state.manifest.index
        return sum(part.count for part in self.state.manifest.parts[: len(entry.parts)]) if entry else 0

    @cached_property
    def _starts(self) -> Tensor:
        return torch.tensor([0, *map(len, self.state.parts)]).cumsum(dim=0)

    def _place(self, row: int) -> tuple[int, int]:
        part = int(torch.searchsorted(self._starts, row, right=True)) - 1
        return part, row - int(self._starts[part])
