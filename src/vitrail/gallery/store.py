"""The contract of places that hold galleries: what every store can do, whatever keeps the images.

A store gives an `ImageTable`, one whole state of the gallery that can be asked, and a `GalleryWriter`, which is the one
process that changes it. All that a gallery answers is computed from the table alone (`gallery_answers.py`), so that
every store answers alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.gallery.answer_rules import ClassMeans
from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.image_rows import Rows


class StateReplacedError(Exception):
    """The state that was asked is no longer there: another process has changed the gallery. Ask the next one."""


class Neighbours(NamedTuple):
    """The images that score best for some queries, best first."""

    scores: Tensor  # [queries, count]: what they were ranked by
    cosines: Tensor  # float32 [queries, count]
    rows: Tensor  # int64 [queries, count]
    labels: Tensor  # int64 [queries, count, levels]; -1 without a label


class ImageTable(ABC):
    """All images of one state of a gallery. A row is the number by which an image is found in this state."""

    facts: GalleryFacts
    place: str  # where the gallery is, as a person writes it
    max_whole: int | None = None  # images that may be brought into memory at once; None: all

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def label_sets(self) -> Mapping[tuple[int, ...], int]:
        """The combinations of labels (one for each level; -1 without a label) that images have, and how many do."""

    @abstractmethod
    def nearest(self, queries: Tensor, *, count: int, bonus: Tensor | None = None) -> Neighbours:
        """The `count` images that score best for each query [queries, dim] of length 1; at most as many as there are.

        The score is the cosine, and with a bonus float64 [queries, coarse classes + 1] the cosine plus that of the
        image's coarse class; the last column is for images without one.
        """

    @abstractmethod
    def coarse_probabilities(self, queries: Tensor) -> Tensor:
        """The probability of each class of the coarse level [queries, classes] by the votes of all images."""

    @abstractmethod
    def means(self, coarse: int | None = None) -> ClassMeans:
        """The means of the classes that are answered; of the images of one coarse class alone where it is given."""

    @abstractmethod
    def find_rows(self, labels: Mapping[str, int], *, limit: int | None = None) -> Tensor:
        """The rows int64 of images with these labels by level (of all images without any), in their order."""

    @abstractmethod
    def find_paths(self, paths: Collection[str]) -> list[int]:
        """The rows of all images that have one of these paths."""

    @abstractmethod
    def labels_of(self, rows: Tensor) -> Tensor:
        """The labels int64 [rows, levels] of images."""

    @abstractmethod
    def vectors_of(self, rows: Tensor) -> Tensor:
        """The embeddings [rows, dim] of images."""

    @abstractmethod
    def paths_of(self, rows: Sequence[int]) -> list[str]:
        """Where images were."""

    @abstractmethod
    def thumbnails_of(self, rows: Sequence[int]) -> list[bytes]:
        """The thumbnails of images, small JPEGs; empty where there is none."""

    @abstractmethod
    def pages(self, *, after: int = -1, size: int) -> Iterator[tuple[int, Rows]]:
        """All images behind a row, `size` at a time, each time with the last row of them."""

    def take(self, rows: Sequence[int]) -> Rows:
        """Some images, with all that is known of them."""
        at = torch.tensor(list(rows), dtype=torch.int64)
        return Rows(
            self.vectors_of(at), self.labels_of(at).int(), tuple(self.paths_of(rows)), tuple(self.thumbnails_of(rows))
        )


class GalleryWriter(ABC):
    """The one process that changes a gallery."""

    table: ImageTable  # what is there before the change

    @abstractmethod
    def change(
        self,
        *,
        without: Collection[int] = (),
        without_class: int | None = None,
        more: Rows | None = None,
        levels: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Make the state that lacks some rows, or a class of the level that is answered, and has more images.

        All of it happens or nothing. `levels` are the classes that there are then.
        """


class GalleryBuilder(ABC):
    """The one process that makes a new gallery."""

    last_row: int  # of the source's, which an attempt before has brought already; -1: none

    @abstractmethod
    def add(self, rows: Rows, *, last_row: int) -> None:
        """Bring more images; the last of them has this row in the source."""

    @abstractmethod
    def finish(self) -> None:
        """Make all that was brought the gallery's first state."""


class GalleryStore(ABC):
    """A place that holds one gallery, or will."""

    place: str  # as a person writes it
    folder: Path  # where pages about the gallery are written
    embeddings_place: Path | None = None  # a folder for embeddings until the gallery is written; None: there is none

    @property
    @abstractmethod
    def title(self) -> str:
        """The gallery's name on pages."""

    @abstractmethod
    def read_facts(self) -> GalleryFacts:
        """What the gallery is made of; an error where there is none."""

    @abstractmethod
    def read(self) -> ImageTable:
        """One whole state, even if another process writes meanwhile."""

    def renewed(self, table: ImageTable) -> ImageTable:
        """The state to answer with: the one that was read, unless the store can't keep it while others write."""
        return table

    def stamp(self) -> object:
        """What differs once another process has changed the gallery; None where `renewed` sees to that by itself."""
        return None

    @abstractmethod
    def writing(self) -> AbstractContextManager[GalleryWriter]:
        """Wait until no other process writes, then be the one that does."""

    @abstractmethod
    def check_new(self) -> None:
        """Refuse a place for a new gallery that holds something else; what a killed `build` left is no hindrance."""

    @abstractmethod
    def choose_index(self, name: str, *, num_images: int) -> str:
        """The kind of index that a name stands for; an error where this store does not have it."""

    @abstractmethod
    def building(self, facts: GalleryFacts, *, origin: str | None = None) -> AbstractContextManager[GalleryBuilder]:
        """Be the one process that makes the gallery.

        With an `origin`, a text that names where the images come from, an attempt that was ended goes on where it was;
        without one it begins anew.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the gallery, or what is left of one; the caller writes it, or nobody else does."""

    def close(self) -> None:
        """Give back what the store holds open in this process."""
        return

    @abstractmethod
    def write_note(self, name: str, text: str) -> None:
        """Keep a text beside the gallery."""

    @abstractmethod
    def read_note(self, name: str) -> str | None:
        """A text that was kept; None where there is none."""
