"""What another model says about the patches of an image, brought to a grid."""

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.data.checks import as_pair
from vitrail.layers.grid import Grid
from vitrail.storage.tensors import hash_tensors


class PatchTeacher:
    """A trained model whose map of patches is read: a run, a saved model, one of the hub, or one by name.

    It sees the images at its own size and normalised as it wants them. Its map is averaged or interpolated where it is
    finer or coarser than the grid that is asked for.
    """

    def __init__(self, spec: str, *, grid: Grid, device: torch.device) -> None:
        from vitrail.inference.trained import load_trained  # which builds runs, and they have teachers

        trained = load_trained(spec).of_trunk()
        if trained.model.config.in_channels != 3:
            raise ValueError(
                f"{spec} takes images of {trained.model.config.in_channels} channels: a teacher must take 3"
            )
        self.name, self.grid = spec, grid
        self.model = trained.model.requires_grad_(False).eval().to(device)
        self.size = as_pair(trained.view.image_size)
        prepared = self.model.preprocessing
        self.mean, self.std = (torch.tensor(v, device=device).view(-1, 1, 1) for v in (prepared.mean, prepared.std))
        self.fingerprint = hash_tensors(self.model.state_dict())
        self.dim = self(torch.zeros(1, 3, *self.size, device=device)).shape[1]

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Patches [batch, dim, rows, columns] of pixels of 0 ... 1, [batch, 3, height, width]."""
        images = pixels.float()
        if images.shape[-2:] != self.size:
            images = resize_pixels(images, self.size)
        patches = self.model.features((images - self.mean) / self.std).patches.float()
        if patches.shape[-2:] == self.grid:
            return patches
        return functional.interpolate(patches, size=self.grid, mode="bilinear", antialias=True)


def resize_pixels(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixels of 0 ... 1 at another size."""
    return functional.interpolate(pixels, size=size, mode="bicubic", antialias=True).clamp(0.0, 1.0)
