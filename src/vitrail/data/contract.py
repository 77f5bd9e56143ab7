"""What the parts of this room hand to each other: labels, data sets, sources, and the batches that leave it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

# What is asked of a source: labels, or an error; those that it has; or none, though it may have some.
Labels = Literal["required", "optional", "ignored"]
# What becomes of faults of single rows of a manifest: an error, or notes of the source without those rows.
Faults = Literal["refused", "noted"]
Same = TypeVar("Same", bound="Batch")
NO_LABEL = -1  # the target of an image that has none: evaluations skip it, and no loss takes it for a class


class SourceFailedError(ValueError):
    """Data that can't be gone on with, such as a store that does not answer: a run stops, and leaves nothing out."""


class Batch(Protocol):
    """What every loader yields, whatever the task: some samples, their places in the data set, and a way to a device.

    A named tuple is also put into pinned memory for a GPU; another class is if it has a method `pin_memory`.
    """

    @property
    def indices(self) -> Tensor:
        """Each sample's place in the data set: int64 [batch], which stays on the CPU."""

    @property
    def num_samples(self) -> int:
        """How many samples the batch holds."""

    def to(self: Same, device: torch.device | str, *, non_blocking: bool = False) -> Same:
        """The batch with all that a model computes with on the device."""


class ImageBatch(NamedTuple):
    """A batch of images with their labels."""

    images: Tensor  # uint8 [batch, 3, height, width]; with several views [batch, views, 3, height, width]
    targets: Tensor  # [batch] class indices, or [batch, classes] where an image may have several; -1: it has no label
    indices: Tensor  # [batch]: the sample's place in the data set
    views: Tensor | None = None  # [batch]: which of its fixed views each image is, where there are such
    answers: Tensor | None = None  # [batch, classes]: what a teacher said about each image before

    @property
    def num_samples(self) -> int:
        """How many images the batch holds, each counted once however many views of it there are."""
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "ImageBatch":
        """The batch with images, targets and answers on the device; the places and numbers of views stay."""
        answers = None if self.answers is None else self.answers.to(device, non_blocking=non_blocking)
        return self._replace(
            images=self.images.to(device, non_blocking=non_blocking),
            targets=self.targets.to(device, non_blocking=non_blocking),
            answers=answers,
        )


class CropsBatch(NamedTuple):
    """Several views of each image in more than one size, such as the large and small crops of self-supervision."""

    crops: tuple[Tensor, ...]  # one a size, in the order of the views: uint8 [batch, views, 3, height, width]
    targets: Tensor  # as in ImageBatch
    indices: Tensor  # [batch]: the sample's place in the data set

    @property
    def num_samples(self) -> int:
        """How many images the batch holds, each counted once however many views of it there are."""
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "CropsBatch":
        """The batch with crops and targets on the device."""
        return self._replace(
            crops=tuple(crops.to(device, non_blocking=non_blocking) for crops in self.crops),
            targets=self.targets.to(device, non_blocking=non_blocking),
        )


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
    levels: Mapping[str, Level]  # the first is the one that is trained on unless another is asked for; may be empty
    groups: np.ndarray | None = None  # int64 [samples]: the file of each sample, where a file holds many (tar shards)

    @abstractmethod
    def __len__(self) -> int:
        """How many samples the split has."""

    @abstractmethod
    def read(self, index: int) -> bytes | np.ndarray:
        """The sample as it is stored: an encoded file, or uint8 pixels [height, width] or [height, width, 3]."""

    def expect(self, indices: Sequence[int]) -> None:  # noqa: B027 most have nothing to prepare
        """Hear which samples are read next, so that what lies far away can be fetched meanwhile and together."""

    @abstractmethod
    def locate(self, index: int) -> str:
        """Where the sample is, as a person would name it: a path, `archive.tar!member`; unique in its source."""

    def level(self, name: str | None = None) -> Level:
        """The level of that name, or the first."""
        if not self.levels:
            raise ValueError(f"{self.name} has no labels: put each class in a folder of its own, or write a manifest")
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
        """Open one of the splits."""
