"""Random erasing: noise in the place of a rectangle (arXiv 1708.04896)."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vitrail.data.checks import check_range
from vitrail.data.draws import Draws

# Of ImageNet's pixels, as bytes.
_MEAN = (123.675, 116.28, 103.53)
_STD = (58.395, 57.12, 57.375)


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Put noise into one box of the picture.

    The papers' code does it behind the normalisation, with normal noise for each number; here it is the same noise
    before it, of ImageNet's mean and standard deviation, so it ends at 0 and 255 as pixels do.
    """

    probability: float
    area: tuple[float, float] = (0.02, 1 / 3)  # of the picture's
    ratio: tuple[float, float] = (0.3, 1 / 0.3)  # height over width; every factor as likely as its inverse

    def __post_init__(self) -> None:
        check_range("the area of erasing", self.area, high=1.0)
        check_range("the ratio of erasing", self.ratio)

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:
        _, height, width = pixels.shape
        if not draws.chance(self.probability):
            return pixels
        for _ in range(10):
            area = draws.uniform(*self.area) * height * width
            ratio = math.exp(draws.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            box_height, box_width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if box_height < height and box_width < width:
                top, left = draws.integer(height - box_height + 1), draws.integer(width - box_width + 1)
                erased = pixels.clone()
                box = erased[:, top : top + box_height, left : left + box_width]
                box.copy_(_make_noise(box_height, box_width, draws))
                return erased
        return pixels


def _make_noise(height: int, width: int, draws: Draws) -> Tensor:
    """Normal pixels [3, height, width]: 16 random bits choose a quantile, which is quicker than drawing normals."""
    words = np.frombuffer(draws.array().bytes(2 * 3 * height * width), dtype="<u2").reshape(3, -1)
    values = np.stack([table.take(row) for table, row in zip(_quantiles(), words, strict=True)], axis=1)
    return torch.from_numpy(values).view(height, width, 3).permute(2, 0, 1)


@cache
def _quantiles() -> tuple[np.ndarray, ...]:
    """For each channel the byte at each of 65,536 equal steps of probability."""
    normal = torch.special.ndtri((torch.arange(65536, dtype=torch.float64) + 0.5) / 65536).numpy()
    levels = (np.rint(mean + std * normal) for mean, std in zip(_MEAN, _STD, strict=True))
    return tuple(level.clip(0, 255).astype(np.uint8) for level in levels)
