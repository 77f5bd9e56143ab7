"""What is made of a sample and of many: a task's images, masks, boxes or tokens, and the batch that holds them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import NO_LABEL, Batch, CropsBatch, Dataset, ImageBatch, Sample
from vitrail.data.decode import OpenedImage, open_image
from vitrail.data.draws import Draws
from vitrail.data.geometry import Crop

Made = TypeVar("Made")
SomeBatch = TypeVar("SomeBatch", bound=Batch)


class Transform(Protocol):
    """From an image not decoded yet to uint8 pixels [3, height, width]; the draws decide every random choice."""

    def __call__(self, image: OpenedImage, draws: Draws) -> Tensor: ...


class PlannedTransform(Protocol):
    """A transform that says, before the image is decoded, which part of it will be seen, and how small."""

    def plan(self, size: tuple[int, int], draws: Draws) -> Crop: ...

    def complete(self, image: OpenedImage, crop: Crop, draws: Draws) -> Tensor: ...


class SampleMaker(ABC, Generic[Made, SomeBatch]):
    """Makes samples of a data set, and batches of samples: what a `Loader` calls in its workers.

    A task that needs more than images and labels has its own. What can't be read is an `OSError`, what can't be decoded
    a `BrokenImageError`: the loader then leaves the sample out, or puts another in its place.
    """

    num_views: int = 1  # how many draws a sample is given

    @abstractmethod
    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> Made:
        """One sample; the draws, one for each view, decide every random choice about it."""

    @abstractmethod
    def collate(self, dataset: Dataset, made: Sequence[Made], indices: Tensor) -> SomeBatch:
        """The batch of one sample or more; `indices` are their places in the data set."""


def read_views(dataset: Dataset, index: int, transforms: Sequence[Transform], draws: Sequence[Draws]) -> list[Tensor]:
    """A view of the image by each transform with its draws; it is decoded once for all of them."""
    image = open_image(dataset.read(index))
    if len(transforms) > 1:
        image = open_image(image.pixels().permute(1, 2, 0).numpy())
    return [transform(image, own) for transform, own in zip(transforms, draws, strict=True)]


def stack_views(views: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """The views of some images, one tensor a size in the order of the views, [images, views, 3, height, width].

    They are in channels-last memory, as the pixels are. A view has the same size in all images.
    """
    by_size: dict[torch.Size, list[int]] = {}
    for number, pixels in enumerate(views[0]):
        by_size.setdefault(pixels.shape, []).append(number)
    stacks = []
    for (channels, height, width), numbers in by_size.items():
        stack = torch.empty(len(views), len(numbers), height, width, channels, dtype=torch.uint8).movedim(-1, 2)
        for row, of_image in enumerate(views):
            for place, number in enumerate(numbers):
                stack[row, place] = of_image[number]
        stacks.append(stack)
    return tuple(stacks)


def find_targets(dataset: Dataset, indices: Tensor, *, level: str | None = None) -> Tensor:
    """Class indices [batch], or rows of zeros and ones where images may have several; -1 for images without labels."""
    if level is None and not dataset.levels:
        return torch.full((len(indices),), NO_LABEL)
    targets = torch.from_numpy(np.ascontiguousarray(dataset.level(level).labels[indices.numpy()]))
    return targets.float() if targets.ndim == 2 else targets


class _Views(NamedTuple):
    """The views of one image, as `Images` makes them."""

    pixels: list[Tensor]
    number: int  # which of its fixed views the image is seen in


class Images(SampleMaker[_Views, ImageBatch]):
    """Images with their labels, in one view or in several of one size."""

    def __init__(
        self, transform: Transform, *, level: str | None = None, num_views: int = 1, notes_views: bool = False
    ) -> None:
        if num_views < 1:
            raise ValueError(f"num_views must be at least 1, not {num_views}")
        self.transform, self.level, self.num_views = transform, level, num_views
        self.notes_views = notes_views  # whether a batch says which of its fixed views an image is seen in

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> _Views:
        """The views of an image."""
        return _Views(read_views(dataset, sample.index, [self.transform] * self.num_views, draws), sample.view)

    def collate(self, dataset: Dataset, made: Sequence[_Views], indices: Tensor) -> ImageBatch:
        """Images [batch, 3, height, width], or of several views [batch, views, 3, height, width]."""
        [images] = stack_views([views.pixels for views in made])
        return ImageBatch(
            images if self.num_views > 1 else images[:, 0],
            find_targets(dataset, indices, level=self.level),
            indices,
            torch.tensor([views.number for views in made]) if self.notes_views else None,
        )


class Crops(SampleMaker[list[Tensor], CropsBatch]):
    """Several views of every image, each by its own transform and of its own size; it is decoded once for all of them.

    A JPEG is decoded as small as the view allows that needs the most of it.
    """

    def __init__(self, transforms: Sequence[PlannedTransform]) -> None:
        if not transforms:
            raise ValueError("an image needs a view: give one transform at least")
        self.transforms, self.num_views = tuple(transforms), len(transforms)

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> list[Tensor]:
        """The views of an image."""
        image = open_image(dataset.read(sample.index))
        size = (image.height, image.width)
        crops = [transform.plan(size, own) for transform, own in zip(self.transforms, draws, strict=True)]
        pixels = image.pixels(shrink=min(crop.shrink for crop in crops)).permute(1, 2, 0)
        decoded = replace(image, _decode=lambda shrink: pixels)
        views = zip(self.transforms, crops, draws, strict=True)
        return [transform.complete(decoded, crop, own) for transform, crop, own in views]

    def collate(self, dataset: Dataset, made: Sequence[list[Tensor]], indices: Tensor) -> CropsBatch:
        """Crops [batch, views, 3, height, width] of each size, with the first labels if there are any."""
        return CropsBatch(stack_views(made), find_targets(dataset, indices), indices)
