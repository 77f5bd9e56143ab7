"""Which patches of an image are masked: at random or in blocks, by draws that belong to the image and its epoch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset, Sample
from vitrail.data.draws import Draws
from vitrail.data.samples import SampleMaker, Transform, find_targets, read_views, stack_views

_ASPECT = (0.3, 1 / 0.3)  # of a block, height over width
_SMALLEST_BLOCK = 16 / 196  # share of the patches
_ATTEMPTS = 10  # to find a place for a block


class PatchMask(Protocol):
    """What draws the mask of an image: bool [rows, columns], true where a patch is masked."""

    @property
    def num_masked(self) -> int:
        """Masked patches of every image."""

    def __call__(self, draws: Draws) -> np.ndarray: ...


def count_masked(grid: tuple[int, int], share: float) -> int:
    """How many patches of a grid are masked: at least one, and one at least stays."""
    num_patches = grid[0] * grid[1]
    return min(max(round(share * num_patches), 1), num_patches - 1)


@dataclass(frozen=True)
class RandomMask:
    """A share of the patches, each as likely as any other (MAE)."""

    grid: tuple[int, int]  # rows and columns
    share: float

    @property
    def num_masked(self) -> int:
        """Masked patches of every image."""
        return count_masked(self.grid, self.share)

    def __call__(self, draws: Draws) -> np.ndarray:
        mask = np.zeros(self.grid, dtype=bool)
        mask.flat[draws.array().permutation(mask.size)[: self.num_masked]] = True
        return mask


@dataclass(frozen=True)
class BlockMask:
    """Rectangles of patches, one after the other until a share of the image is masked (BEiT, section 2.3).

    A block has at least 16 of 196 patches, and an aspect from 0.3 to 1/0.3. Where no further block fits the number that
    is left, single patches beside masked ones are taken, so that every image has the same number: BEiT's own code
    leaves such an image with a few patches less.
    """

    grid: tuple[int, int]  # rows and columns
    share: float

    @property
    def num_masked(self) -> int:
        """Masked patches of every image."""
        return count_masked(self.grid, self.share)

    @property
    def least(self) -> int:
        """Patches of the smallest block."""
        return max(1, round(_SMALLEST_BLOCK * self.grid[0] * self.grid[1]))

    def __call__(self, draws: Draws) -> np.ndarray:
        mask = np.zeros(self.grid, dtype=bool)
        while (missing := self.num_masked - int(mask.sum())) > 0:
            block = self._find_block(mask, missing, draws)
            mask = _grown(mask, draws) if block is None else mask | block
        return mask

    def _find_block(self, mask: np.ndarray, missing: int, draws: Draws) -> np.ndarray | None:
        """A block that masks at least one further patch and at most those that are missing."""
        rows, columns = self.grid
        for _ in range(_ATTEMPTS):
            area = draws.uniform(self.least, max(self.least, missing))
            aspect = math.exp(draws.uniform(*map(math.log, _ASPECT)))
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            top, left = draws.integer(max(rows - height, 0) + 1), draws.integer(max(columns - width, 0) + 1)
            if height > rows or width > columns or height * width < self.least:
                continue
            block = np.zeros_like(mask)
            block[top : top + height, left : left + width] = True
            if 0 < (block & ~mask).sum() <= missing:
                return block
        return None


def _grown(mask: np.ndarray, draws: Draws) -> np.ndarray:
    """The mask with one more patch beside a masked one; any patch where none is masked."""
    near = np.zeros_like(mask)
    near[1:] |= mask[:-1]
    near[:-1] |= mask[1:]
    near[:, 1:] |= mask[:, :-1]
    near[:, :-1] |= mask[:, 1:]
    places = np.flatnonzero(near & ~mask) if mask.any() else np.arange(mask.size)
    grown = mask.copy()
    grown.flat[draws.choice(places.tolist())] = True
    return grown


class MaskedBatch(NamedTuple):
    """Images, the patches of them that are masked, and what these are to be told from the others."""

    images: Tensor  # uint8 [batch, 3, height, width]
    masks: Tensor  # bool [batch, rows, columns]
    targets: Tensor  # labels, as in ImageBatch: they measure and teach nothing
    indices: Tensor  # [batch]: the sample's place in the data set
    wanted: Tensor | None = None  # [batch, masked patches] of tokens, or [batch, masked patches, numbers]

    @property
    def num_samples(self) -> int:
        """How many images the batch holds."""
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "MaskedBatch":
        """The batch with images, masks and targets on the device."""
        return self._replace(
            images=self.images.to(device, non_blocking=non_blocking),
            masks=self.masks.to(device, non_blocking=non_blocking),
            targets=self.targets.to(device, non_blocking=non_blocking),
        )


class _MaskedImage(NamedTuple):
    pixels: list[Tensor]  # one
    mask: np.ndarray


class MaskedImages(SampleMaker[_MaskedImage, MaskedBatch]):
    """Images in one view each, with a mask; what is drawn for one does not move what is drawn for the other."""

    num_views = 2

    def __init__(self, transform: Transform, mask: PatchMask, *, level: str | None = None) -> None:
        self.transform, self.mask, self.level = transform, mask, level

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> _MaskedImage:
        """An image and its mask."""
        return _MaskedImage(read_views(dataset, sample.index, [self.transform], draws[:1]), self.mask(draws[1]))

    def collate(self, dataset: Dataset, made: Sequence[_MaskedImage], indices: Tensor) -> MaskedBatch:
        """Images [batch, 3, height, width] and masks [batch, rows, columns]."""
        [images] = stack_views([one.pixels for one in made])
        masks = torch.from_numpy(np.stack([one.mask for one in made]))
        return MaskedBatch(images[:, 0], masks, find_targets(dataset, indices, level=self.level), indices)
