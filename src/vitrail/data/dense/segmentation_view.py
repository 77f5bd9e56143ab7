"""Training pictures with their masks: resized by chance, cut so that no class fills all of it, mirrored, distorted."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from PIL import Image

from vitrail.data.augment import EvaluationView
from vitrail.data.checks import as_pair, as_plain_size
from vitrail.data.decode import OpenedImage
from vitrail.data.dense.contract import IGNORED
from vitrail.data.dense.distortion import PhotometricDistortion
from vitrail.data.dense.samples import MaskedImage
from vitrail.data.draws import Draws
from vitrail.data.geometry import Box, Crop
from vitrail.settings.dense import SegmentAugmentationSettings

_LONG = 4  # times the short side: how long the other may be where nothing else is said
_NUM_KEYS = 2**48


@dataclass(frozen=True)
class SegmentationView:
    """Resize, crop, flip and photometric distortion, in this order; a batch pads what is smaller than the picture."""

    image_size: int | tuple[int, int]  # or (height, width)
    settings: SegmentAugmentationSettings = field(default_factory=SegmentAugmentationSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_plain_size(self.image_size))

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of a training picture."""
        return as_pair(self.image_size)

    def __call__(self, image: OpenedImage, mask: np.ndarray, draws: Draws) -> MaskedImage:
        """The picture and the mask that the draws make of an image."""
        geometry, colour = Draws(draws.integer(_NUM_KEYS)), Draws(draws.integer(_NUM_KEYS))
        crop, part = self.plan(mask, geometry)
        pixels = crop.apply(image)
        if self._distortion is not None:
            pixels = self._distortion(pixels, colour)
        return MaskedImage(pixels, part)

    def plan(self, mask: np.ndarray, draws: Draws) -> tuple[Crop, np.ndarray]:
        """Where from the picture is taken, and its mask: the first crop that no class fills beyond its share."""
        is_flipped, ratio = draws.chance(self.settings.flip), draws.uniform(*self.settings.ratio)
        resized = self._resize(mask.shape, ratio)
        crop, part = self._cut(mask, resized, draws, is_flipped=is_flipped)
        if resized[0] <= self.size[0] and resized[1] <= self.size[1]:  # all of it is seen, however often it is tried
            return crop, part
        for _ in range(self.settings.tries - 1):
            if self.settings.max_share == 1.0 or _largest_share(part) < self.settings.max_share:
                break
            crop, part = self._cut(mask, resized, draws, is_flipped=is_flipped)
        return crop, part

    def _resize(self, size: tuple[int, ...], ratio: float) -> tuple[int, int]:
        """The size of the whole image, which keeps its aspect ratio."""
        short = self.settings.short_side or min(self.size)
        long = self.settings.long_side or _LONG * short
        factor = ratio * min(short / min(size), long / max(size))
        return max(1, int(size[0] * factor + 0.5)), max(1, int(size[1] * factor + 0.5))

    def _cut(
        self, mask: np.ndarray, resized: tuple[int, int], draws: Draws, *, is_flipped: bool
    ) -> tuple[Crop, np.ndarray]:
        height, width = min(self.size[0], resized[0]), min(self.size[1], resized[1])
        top, left = draws.integer(resized[0] - height + 1), draws.integer(resized[1] - width + 1)
        crop = Crop(
            source=Box(0, 0, mask.shape[0], mask.shape[1]),
            resized=resized,
            window=Box(top, left, height, width),
            interpolation="bilinear",
            is_flipped=is_flipped,
        )
        rows, columns = crop.find_nearest()
        return crop, mask[rows].take(columns, axis=1)

    @cached_property
    def _distortion(self) -> PhotometricDistortion | None:
        chosen = self.settings
        if not chosen.distortion:
            return None
        return PhotometricDistortion(
            chosen.distortion, chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue
        )


@dataclass(frozen=True)
class SeenWithMask:
    """A test picture, cut as that of a classifier, with the mask of what is seen."""

    view: EvaluationView

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the picture."""
        return as_pair(self.view.image_size)

    def __call__(self, image: OpenedImage, mask: np.ndarray, draws: Draws) -> MaskedImage:
        """Both; nothing about them is random."""
        crop = self.view.plan((image.height, image.width))
        return MaskedImage(crop.apply(image), crop.apply_to_mask(torch.from_numpy(mask)).numpy())


def _largest_share(mask: np.ndarray) -> float:
    """The share of the largest class among the pixels that have one; 1 where none has."""
    counts = Image.fromarray(mask).histogram()[:IGNORED]  # several times as fast as NumPy
    return max(counts) / total if (total := sum(counts)) else 1.0
