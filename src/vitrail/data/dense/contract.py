"""What masks and boxes are: data sets that have them, the data of a run, and the batches that hold them."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset, Note
from vitrail.data.decode import open_image

IGNORED = 255  # the label of a pixel of which nothing is known: no loss and no measure looks at it
MAX_CLASSES = 254  # a mask has a byte a pixel; one value is taken, another stands for what is no class while it is read
PADDING_COLOUR = (124, 116, 104)  # of what is no image: ImageNet's mean in bytes, so that it is about 0 once normalised

Colour = tuple[int, int, int]


class Objects(NamedTuple):
    """The objects of one image; as arrays where they are read, as tensors in a batch."""

    boxes: Any  # float32 [objects, 4]: left, top, right, bottom in pixels, right and bottom exclusive
    labels: Any  # int64 [objects]: places in the list of classes, from 0; the background is not one of them
    masks: Any  # uint8 [objects, height, width] of 0 and 1, or None where objects have boxes only
    is_crowd: Any  # bool [objects]: whether it stands for many objects that were not told apart
    areas: Any  # float32 [objects]: pixels, of the mask as the data set counts them, or of the box

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Objects":
        """The tensors on the device."""
        return Objects(*(part if part is None else part.to(device, non_blocking=non_blocking) for part in self))

    def select(self, which: Any) -> "Objects":
        """Some of the objects, by an index or a mask of truth values."""
        return Objects(*(part if part is None else part[which] for part in self))


class MaskWindow(NamedTuple):
    """The part of an image that an object's mask lies in; outside it is 0."""

    top: int
    left: int
    values: np.ndarray  # uint8 [height, width] of 0 and 1


class WindowedObjects(NamedTuple):
    """The objects of one image, with masks as small as they can be: what is read before it is cut and resized."""

    boxes: np.ndarray  # as in Objects, all four within the image
    labels: np.ndarray
    windows: tuple[MaskWindow, ...] | None
    is_crowd: np.ndarray
    areas: np.ndarray

    def unfold(self, size: tuple[int, int]) -> Objects:
        """The objects with masks of the image's height and width."""
        masks = None
        if self.windows is not None:
            masks = np.zeros((len(self.windows), *size), dtype=np.uint8)
            for mask, (top, left, values) in zip(masks, self.windows, strict=True):
                mask[top : top + values.shape[0], left : left + values.shape[1]] = values
        return Objects(self.boxes, self.labels, masks, self.is_crowd, self.areas)


class SegmentationSet(Dataset):
    """Images in which every pixel has a class."""

    @abstractmethod
    def read_mask(self, index: int) -> np.ndarray:
        """Classes of the pixels, uint8 [height, width]: places in the list of classes, `IGNORED` where none is known.

        A file that can't be read is an `OSError`, one that holds no such mask a `BrokenImageError`.
        """


class DetectionSet(Dataset):
    """Images in which objects are marked by boxes, and maybe by masks."""

    @abstractmethod
    def read_windows(self, index: int, size: tuple[int, int]) -> WindowedObjects:
        """The objects of an image of that height and width, which must be the one that the annotations say, if any."""

    def read_objects(self, index: int) -> Objects:
        """The objects of an image, as NumPy arrays."""
        size = self.size(index)
        if size is None:
            image = open_image(self.read(index))
            size = image.height, image.width
        return self.read_windows(index, size).unfold(size)

    @abstractmethod
    def image_id(self, index: int) -> int:
        """The number by which results name the image (COCO's `image_id`)."""

    def size(self, index: int) -> tuple[int, int] | None:
        """The height and width that the annotations say; None where they say none."""
        return None


@dataclass(frozen=True, eq=False)
class DenseData:
    """Marked images that a run is trained and evaluated on."""

    train: Dataset
    val: Dataset
    classes: tuple[str, ...]
    is_held_out: bool = field(default=False, kw_only=True)  # whether val was taken from train, since there was none
    notes: tuple[Note, ...] = field(default=(), kw_only=True)  # what was odd about the data

    @property
    def num_train(self) -> int:
        """How many training images there are."""
        return len(self.train)

    @property
    def num_val(self) -> int:
        """How many images there are to evaluate on."""
        return len(self.val)

    def locate(self, index: int) -> str:
        """Where a training image is."""
        return self.train.locate(index)

    def describe(self) -> dict[str, Any]:
        """Classes and numbers of images, for task.json."""
        return {"classes": list(self.classes), "num_train": self.num_train, "num_val": self.num_val}


@dataclass(frozen=True, eq=False)
class SegmentationData(DenseData):
    """Images with masks that a run is trained and evaluated on."""

    train: SegmentationSet
    val: SegmentationSet
    classes: tuple[str, ...]
    colours: tuple[Colour, ...]  # of the classes, to draw them

    def describe(self) -> dict[str, Any]:
        """Classes and their colours, for task.json."""
        return super().describe() | {"colours": [list(colour) for colour in self.colours]}


@dataclass(frozen=True, eq=False)
class DetectionData(DenseData):
    """Images with marked objects that a run is trained and evaluated on."""

    train: DetectionSet
    val: DetectionSet
    classes: tuple[str, ...]
    has_masks: bool  # whether objects have masks
    category_ids: tuple[int, ...]  # of the classes, as results name them (COCO's `category_id`)

    def describe(self) -> dict[str, Any]:
        """Classes, the numbers that results name them by, and whether there are masks, for task.json."""
        return super().describe() | {"category_ids": list(self.category_ids), "has_masks": self.has_masks}


class MaskBatch(NamedTuple):
    """A batch of images with masks; what is no image, below and to the right, is `IGNORED`."""

    images: Tensor  # uint8 [batch, 3, height, width], channels last in memory
    masks: Tensor  # uint8 [batch, height, width]
    indices: Tensor  # int64 [batch]: the sample's place in the data set
    sizes: Tensor  # int64 [batch, 2]: the height and width that are image; beyond them is the padding's colour

    @property
    def num_samples(self) -> int:
        """How many images the batch holds."""
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "MaskBatch":
        """The batch with images and masks on the device."""
        return self._replace(
            images=self.images.to(device, non_blocking=non_blocking),
            masks=self.masks.to(device, non_blocking=non_blocking),
        )


class ObjectBatch(NamedTuple):
    """A batch of images with objects; what is no image, below and to the right, has the padding's colour."""

    images: Tensor  # uint8 [batch, 3, height, width], channels last in memory; both sides are multiples of 32
    sizes: Tensor  # int64 [batch, 2]: the height and width that are image
    objects: tuple[Objects, ...]  # in pixels of `images`; masks are as large as `sizes` says
    indices: Tensor  # int64 [batch]: the sample's place in the data set
    original_sizes: Tensor  # int64 [batch, 2]: height and width of the images as they are stored

    @property
    def num_samples(self) -> int:
        """How many images the batch holds."""
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "ObjectBatch":
        """The batch with images and objects on the device."""
        return self._replace(
            images=self.images.to(device, non_blocking=non_blocking),
            objects=tuple(objects.to(device, non_blocking=non_blocking) for objects in self.objects),
        )
