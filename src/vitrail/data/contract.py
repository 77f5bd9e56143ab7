"""What the parts of this room hand to each other: labels, data sets, sources, and the batches that leave it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from torch import Tensor


class Batch(NamedTuple):
    """What every loader yields."""

    images: Tensor  # uint8 [batch, 3, height, width]; with several views [batch, views, 3, height, width]
    targets: Tensor  # [batch] class indices, or [batch, classes] where an image may have several classes
    indices: Tensor  # [batch]: the sample's place in the data set
    views: Tensor | None = None  # [batch]: which of its fixed views each image is, where there are such
    answers: Tensor | None = None  # [batch, classes]: what a teacher said about each image before


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to be made: with the run's seed, this decides every random choice about it."""

    epoch: int
    index: int  # place in the data set
    view: int  # 0, 1, ... for repeated augmentation and for several views of one image


@dataclass(frozen=True, eq=False)
class Level:
    """One way to label a data set: species, genus ..., or fine and coarse."""

    classes: tuple[str, ...]  # the same list in every split
    labels: np.ndarray  # int64 [samples]; or bool [samples, classes] where an image may have several classes, or none

    @property
    def is_multiple(self) -> bool:
        """Whether an image may have several classes, or none."""
        return self.labels.ndim == 2


class Dataset(ABC):
    """The samples of one split: where they lie and what they show. It does not decode."""

    name: str  # of the source, for messages
    split: str
    levels: Mapping[str, Level]  # the first is the one that is trained on unless another is asked for
    groups: np.ndarray | None = None  # int64 [samples]: the file of each sample, where a file holds many (tar shards)

    def __len__(self) -> int:
        return len(next(iter(self.levels.values())).labels)

    @abstractmethod
    def read(self, index: int) -> bytes | np.ndarray:
        """The sample as it is stored: an encoded file, or uint8 pixels [height, width] or [height, width, 3]."""

    @abstractmethod
    def locate(self, index: int) -> str:
        """Where the sample is, as a person would name it: a path, `archive.tar!member`; unique in its source."""

    def level(self, name: str | None = None) -> Level:
        """The level of that name, or the first."""
        if name is None:
            return next(iter(self.levels.values()))
        if name not in self.levels:
            raise ValueError(f"{self.name} has no labels {name!r}; it has: {', '.join(self.levels)}")
        return self.levels[name]


class Note(NamedTuple):
    """Something odd that showed when a source was opened."""

    problem: str  # "class missing", "stray file" ...: one name per kind
    place: str  # the class, the file or the folder
    detail: str  # what is wrong and what to do, for a person
    is_serious: bool  # whether it must be put right before training


class Source(ABC):
    """One place where data lives, with all its splits."""

    name: str
    splits: tuple[str, ...]  # in the order train, val, test, others
    notes: tuple[Note, ...] = ()
    aliases: Mapping[str, str] = MappingProxyType({})  # other names of splits

    @abstractmethod
    def open(self, split: str) -> Dataset:
        """One of the splits."""
