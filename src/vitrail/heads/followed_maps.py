"""Gradients of what a dense head says, by the maps of the trunk that it reads."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.models.contract import Features


class FollowedMaps(NamedTuple):
    """Features whose maps are parts of one tensor, by which an answer can be differentiated."""

    features: Features
    values: Tensor  # [batch, all numbers of the maps], which requires gradients
    shapes: tuple[torch.Size, ...]  # of the maps, [channels, height, width]

    def to_map(self, product: Tensor) -> Tensor:
        """Something of the shape of `values`, summed over channels and maps on the finest grid: [batch, height, width].

        What a coarser cell holds is divided among the cells of the finest grid in it: the sum stays the same.
        """
        finest = max((shape[-2:] for shape in self.shapes), key=lambda grid: grid[0] * grid[1])
        total = product.new_zeros(len(product), *finest)
        parts = product.split([shape.numel() for shape in self.shapes], dim=1)
        for part, shape in zip(parts, self.shapes, strict=True):
            sums = part.unflatten(1, shape).sum(dim=1)
            if sums.shape[1:] != finest:
                share = sums[0].numel() / total[0].numel()
                sums = share * functional.interpolate(sums[:, None], size=finest, mode="nearest")[:, 0]
            total += sums
        return total


def follow_maps(features: Features) -> FollowedMaps:
    """Features as a head reads them: at the levels that were asked for, or the last map where none were."""
    maps: Sequence[Tensor] = features.levels or (features.patches,)
    shapes = tuple(one.shape[1:] for one in maps)
    values = torch.cat([one.flatten(1) for one in maps], dim=1).detach().requires_grad_()
    with torch.enable_grad():
        parts = values.split([shape.numel() for shape in shapes], dim=1)
        followed = [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]
    if features.levels:
        return FollowedMaps(features._replace(levels=tuple(followed)), values, shapes)
    return FollowedMaps(features._replace(patches=followed[0]), values, shapes)
