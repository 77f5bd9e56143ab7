"""Whether maps name what matters: deletion and insertion curves, the pointing game, energy inside a mask.

Deletion and insertion are of Petsiuk et al. (arXiv 1806.07421), the pointing game of Zhang et al. (arXiv 1608.00507).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.models.contract import Model

NUM_STEPS = 10  # of a curve
_BLUR = 1 / 8  # width of the blur that insertion starts from, over the image's side


class Curves(NamedTuple):
    """The class's probability as patches are taken away, or put back, in the order of a map."""

    deletion: Tensor  # [batch, steps + 1], from the whole image to none of it
    insertion: Tensor  # [batch, steps + 1], from a blurred image to the whole


@torch.no_grad()
def find_curves(
    model: Model, images: Tensor, maps: Tensor, *, classes: Tensor, steps: int = NUM_STEPS, batch_size: int = 32
) -> Curves:
    """Curves for prepared images, maps [batch, rows, columns] and the class [batch] of each.

    Cells of the map are taken by their values, equally many in each step. What is taken away becomes the mean colour
    (zero, once images are normalised); what is not yet put back is blurred. Lower deletion and higher insertion tell
    of a better map.
    """
    if steps < 1:
        raise ValueError(f"a curve has at least 1 step, not {steps}")
    model.eval()
    deletion, insertion = [], []
    for image, values, chosen in zip(images, maps, classes.tolist(), strict=True):
        taken = _taken_at_each_step(values, steps=steps, size=(image.shape[1], image.shape[2]))
        blurred = blur(image[None])[0]
        pictures = torch.cat([torch.where(taken, 0.0, image), torch.where(taken, image, blurred)])
        answers = [model(part).float().softmax(dim=1)[:, chosen] for part in pictures.split(batch_size)]
        down, up = torch.cat(answers).chunk(2)
        deletion.append(down)
        insertion.append(up)
    return Curves(torch.stack(deletion), torch.stack(insertion))


def area(curve: Tensor) -> Tensor:
    """The area under curves [..., steps + 1] over the share of patches, by trapezoids: between 0 and 1."""
    return (0.5 * (curve[..., 1:] + curve[..., :-1])).mean(dim=-1)


def blur(images: Tensor) -> Tensor:
    """Images with no detail left: a Gaussian of an eighth of the shorter side, mirrored at the border."""
    sigma = max(1.0, _BLUR * min(images.shape[-2:]))
    reach = min(round(2 * sigma), min(images.shape[-2:]) - 1)
    weights = _gaussian(torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype), sigma)
    weights = weights / weights.sum()
    channels = images.shape[1]
    padded = functional.pad(images, (reach,) * 4, mode="reflect")
    rows = functional.conv2d(padded, weights.view(1, 1, -1, 1).expand(channels, -1, -1, -1), groups=channels)
    return functional.conv2d(rows, weights.view(1, 1, 1, -1).expand(channels, -1, -1, -1), groups=channels)


def _taken_at_each_step(values: Tensor, *, steps: int, size: tuple[int, int]) -> Tensor:
    """Which pixels have been taken after each step, bool [steps + 1, 1, height, width]."""
    order = values.flatten().argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    limits = torch.linspace(0, len(order), steps + 1, device=order.device).round()
    taken = (rank[None] < limits[:, None]).view(steps + 1, 1, *values.shape)
    return functional.interpolate(taken.float(), size=size, mode="nearest-exact") > 0.5


def points_at(maps: Tensor, masks: Tensor) -> Tensor:
    """The pointing game: whether the greatest value of each map [batch, rows, columns] lies in its mask, bool [batch].

    Masks are bool [batch, height, width]; maps are brought to their size.
    """
    peaks = _enlarge(maps, masks).flatten(1).argmax(dim=1)
    return masks.flatten(1).gather(1, peaks[:, None])[:, 0]


def energy_inside(maps: Tensor, masks: Tensor) -> Tensor:
    """The share of the maps' positive values that lies in the masks, [batch]; a map of zeros counts as even."""
    positive = _enlarge(maps, masks).clamp(min=0)
    positive = torch.where(positive.sum(dim=(1, 2), keepdim=True) > 0, positive, 1.0)
    return (positive * masks).sum(dim=(1, 2)) / positive.sum(dim=(1, 2))


def _enlarge(maps: Tensor, masks: Tensor) -> Tensor:
    return functional.interpolate(maps[:, None].float(), size=masks.shape[-2:], mode="bilinear")[:, 0]


def random_maps(maps: Tensor, *, seed: int) -> Tensor:
    """A floor: values drawn evenly, in the shape of some maps [batch, rows, columns]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(maps.shape, generator=generator).to(maps.device)


def centre_maps(maps: Tensor) -> Tensor:
    """A floor: a Gaussian in the middle of the image, a quarter of its sides wide; photographers centre things."""
    rows, columns = maps.shape[-2:]
    vertical, horizontal = (
        _gaussian((torch.arange(count, device=maps.device) + 0.5) / count - 0.5, 0.25) for count in (rows, columns)
    )
    return (vertical[:, None] * horizontal).expand(maps.shape)


def _gaussian(places: Tensor, sigma: float) -> Tensor:
    return torch.exp(-0.5 * (places / sigma) ** 2)


class Scores:
    """Means of all measures over the images so far, for each kind of map."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}

    @classmethod
    def joined(cls, parts: "Sequence[Scores]") -> "Scores":
        """Those of all images of several, in their order."""
        whole = cls()
        for part in parts:
            for name, measures in part.values.items():
                for measure, values in measures.items():
                    whole._of(name, measure).extend(values)
        return whole

    def _of(self, name: str, measure: str) -> list[float]:
        return self.values.setdefault(name, {}).setdefault(measure, [])

    def add(self, name: str, curves: Curves, maps: Tensor, masks: Tensor | None) -> None:
        """Count in the images of a batch; masks where there are any."""
        self._of(name, "deletion").extend(area(curves.deletion).tolist())
        self._of(name, "insertion").extend(area(curves.insertion).tolist())
        if masks is not None:
            has_object = masks.flatten(1).any(dim=1)
            maps, masks = maps[has_object], masks[has_object]
            self._of(name, "pointing").extend(points_at(maps, masks).float().tolist())
            self._of(name, "energy").extend(energy_inside(maps, masks).tolist())
            self._of(name, "mask").extend(masks.float().mean(dim=(1, 2)).tolist())

    def results(self) -> Iterator[tuple[str, dict[str, float]]]:
        """The name of each kind of map and the mean of each measure."""
        for name, measures in self.values.items():
            yield name, {measure: _mean(values) for measure, values in measures.items() if values}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
