"""What another model says about the patches of an image, brought to a grid."""

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.heads.features import resample
from vitrail.layers.grid import Grid
from vitrail.settings.section import ImageSize
from vitrail.tasks.teaching.feature_teacher import load_feature_teacher


class PatchTeacher:
    """A teacher whose map of patches is read, averaged or interpolated where it is finer or coarser than the grid.

    It sees the images at its own size and normalised as it wants them.
    """

    def __init__(self, spec: str, *, grid: Grid, image_size: ImageSize, device: torch.device) -> None:
        levels = frozenset({"patches"})
        self.teacher = load_feature_teacher(spec, levels=levels, student_size=image_size, device=device)
        self.grid, self.dim, self.fingerprint = grid, self.teacher.patches, self.teacher.fingerprint

    def __call__(self, pixels: Tensor) -> Tensor:
        """Patches [batch, dim, rows, columns] of pixels of 0 ... 1, [batch, 3, height, width]; without a gradient."""
        patches = self.teacher.ask(pixels).patches
        assert patches is not None, "a teacher without patches is refused"
        return resample(patches.float(), self.grid)


def resize_pixels(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixels of 0 ... 1 at another size."""
    return functional.interpolate(pixels, size=size, mode="bicubic", antialias=True).clamp(0.0, 1.0)
