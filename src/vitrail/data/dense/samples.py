"""Samples and batches of images with masks and with objects: what a `Loader` makes in its workers."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset, Sample
from vitrail.data.decode import BrokenImageError, OpenedImage, open_image
from vitrail.data.dense.contract import (
    IGNORED,
    PADDING_COLOUR,
    DetectionSet,
    MaskBatch,
    ObjectBatch,
    Objects,
    SegmentationSet,
    WindowedObjects,
)
from vitrail.data.draws import Draws
from vitrail.data.samples import SampleMaker

_MULTIPLE = 32  # of the sides of a batch of images with objects: what the coarsest of four levels divides them by


class MaskedImage(NamedTuple):
    """An image with its mask."""

    pixels: Tensor  # uint8 [3, height, width], channels last in memory
    mask: np.ndarray  # uint8 [height, width]


class MarkedImage(NamedTuple):
    """An image with its objects, as arrays, in its own pixels."""

    pixels: Tensor  # uint8 [3, height, width], channels last in memory
    objects: Objects
    original_size: tuple[int, int]


class MaskTransform(Protocol):
    """From an image not decoded yet and its mask to both as a model sees them; the draws decide every random choice."""

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width of batches, which smaller images are padded to; None: those of their largest image."""

    def __call__(self, image: OpenedImage, mask: np.ndarray, draws: Draws) -> MaskedImage: ...


class ObjectTransform(Protocol):
    """From an image not decoded yet and its objects to both as a model sees them."""

    def __call__(self, image: OpenedImage, objects: WindowedObjects, draws: Draws) -> MarkedImage: ...


class MaskSamples(SampleMaker[MaskedImage, MaskBatch]):
    """Images with masks; without a transform whole, as they are stored, for evaluation."""

    def __init__(self, transform: MaskTransform | None = None) -> None:
        self.transform = transform

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> MaskedImage:
        """An image and its mask, by the transform or whole."""
        assert isinstance(dataset, SegmentationSet)
        image = open_image(dataset.read(sample.index))
        mask = dataset.read_mask(sample.index)
        if mask.shape != (image.height, image.width):
            raise BrokenImageError(
                f"is {image.width} x {image.height} pixels, but its mask {mask.shape[1]} x {mask.shape[0]}"
            )
        return MaskedImage(image.pixels(), mask) if self.transform is None else self.transform(image, mask, draws[0])

    def collate(self, dataset: Dataset, made: Sequence[MaskedImage], indices: Tensor) -> MaskBatch:
        """Images and masks padded to one size."""
        sizes = [item.mask.shape for item in made]
        fixed = None if self.transform is None else self.transform.size
        height, width = fixed or (max(size[0] for size in sizes), max(size[1] for size in sizes))
        masks = np.full((len(made), height, width), IGNORED, dtype=np.uint8)
        for row, (item, size) in enumerate(zip(made, sizes, strict=True)):
            masks[row, : size[0], : size[1]] = item.mask
        images = pad_images([item.pixels for item in made], (height, width))
        return MaskBatch(images, torch.from_numpy(masks), indices, torch.tensor(sizes))


class ObjectSamples(SampleMaker[MarkedImage, ObjectBatch]):
    """Images with objects; without a transform whole, as they are stored."""

    def __init__(self, transform: ObjectTransform | None = None) -> None:
        self.transform = transform

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> MarkedImage:
        """An image and its objects, by the transform or whole."""
        assert isinstance(dataset, DetectionSet)
        image = open_image(dataset.read(sample.index))
        size = image.height, image.width
        objects = dataset.read_windows(sample.index, size)
        if self.transform is not None:
            return self.transform(image, objects, draws[0])
        return MarkedImage(image.pixels(), objects.unfold(size), size)

    def collate(self, dataset: Dataset, made: Sequence[MarkedImage], indices: Tensor) -> ObjectBatch:
        """Images padded to the largest of them, and to a multiple of 32; objects as tensors."""
        sizes = torch.tensor([item.pixels.shape[1:] for item in made])
        height, width = (-(-int(side) // _MULTIPLE) * _MULTIPLE for side in sizes.amax(dim=0))
        return ObjectBatch(
            images=pad_images([item.pixels for item in made], (height, width)),
            sizes=sizes,
            objects=tuple(_as_tensors(item.objects) for item in made),
            indices=indices,
            original_sizes=torch.tensor([item.original_size for item in made]),
        )


def pad_images(images: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Images [3, height, width] in one tensor of that size, channels last; the padding is below and to the right."""
    batch = np.empty((len(images), *size, 3), dtype=np.uint8)
    line = np.tile(np.array(PADDING_COLOUR, dtype=np.uint8), (size[1], 1))
    for row, pixels in zip(batch, images, strict=True):
        height, width = pixels.shape[1:]
        row[:height, :width] = pixels.permute(1, 2, 0).numpy()
        row[height:] = line
        row[:height, width:] = line[width:]
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


def _as_tensors(objects: Objects) -> Objects:
    return Objects(*(None if part is None else torch.from_numpy(np.ascontiguousarray(part)) for part in objects))
