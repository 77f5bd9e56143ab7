"""How far attention reaches: the mean distance of what patches look at, and how many patches special tokens see."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.explain.attention_rows import Attention, attention_rows, find_attentions, record
from vitrail.inspection.layers import Layer, find_layers
from vitrail.layers.attention import ClassAttention
from vitrail.models.contract import Model


@dataclass(eq=False)
class _Sums:
    """Sums of one attention layer over images, [heads]."""

    total: Tensor | None = None
    count: int = 0

    def add(self, values: Tensor) -> None:  # [batch, heads]
        summed = values.double().sum(dim=0).cpu()
        self.total = summed if self.total is None else self.total + summed
        self.count += len(values)


@dataclass(eq=False)
class AttentionMeter:
    """Means over images for each layer and head; the heads of parallel attentions count on."""

    layers: tuple[Layer, ...]
    even_distance: float | None = None  # what attention to all patches alike would come to
    _sums: dict[Attention, _Sums] = field(default_factory=dict)

    def distances(self) -> list[list[float]]:
        """Distances in pixels, for each self-attention layer and each of its heads."""
        return self._means("self-attention")

    def spreads(self) -> list[list[float]]:
        """The number of patches looked at, for each class-attention layer and each of its heads."""
        return self._means("class-attention")

    def note(self, attention: Attention, values: Tensor) -> None:
        """Count in the images of a batch, [batch, heads]."""
        self._sums.setdefault(attention, _Sums()).add(values)

    def _means(self, kind: str) -> list[list[float]]:
        found = []
        for layer in self.layers:
            if layer.kind == kind:
                sums = [self._sums[attention] for attention in find_attentions(layer.residual)]
                found.append(
                    [mean for each in sums if each.total is not None for mean in (each.total / each.count).tolist()]
                )
        return found


@contextmanager
def watched_attention(model: Model, images_size: tuple[int, int]) -> Iterator[AttentionMeter]:
    """A meter of all attention layers while images of that height and width pass through `model.features`.

    The distance of a head is that between the centres of two patches, weighted by attention, the mean over all patches
    that look; special tokens, which have no place, are left out on both sides. The spread of a class-attention head is
    exp(entropy) of its weights on patches: 1 for a single patch, their number for all alike. Talking heads mix weights
    linearly, which may make some of them negative: they count by their size, for the values could carry the sign.
    """
    meter = AttentionMeter(find_layers(model))
    attentions = [each for layer in meter.layers for each in find_attentions(layer.residual)]
    distances = _distances_of(model, images_size)
    if distances is not None:
        meter.even_distance = distances.mean().item()

    def take(attention: Attention, tokens: Tensor, context: Tensor | None) -> None:
        if isinstance(attention, ClassAttention):
            assert context is not None
            rows = _as_distributions(attention_rows(attention, tokens, context)[..., -context.shape[1] :])
            meter.note(attention, spread_of(rows).mean(dim=2))
        elif distances is not None:
            special = slice(tokens.shape[1] - len(distances), None)
            rows = _as_distributions(attention_rows(attention, tokens, context, rows=special)[..., special])
            meter.note(attention, (rows * distances.to(rows.device)).sum(dim=3).mean(dim=2))

    with record(attentions, torch.no_grad()(take)):
        yield meter


def distances_between(grid: tuple[int, int], *, step: float) -> Tensor:
    """Distances of the centres of all patches of a grid, `step` apart, [patches, patches]."""
    rows, columns = (torch.arange(count, dtype=torch.float32) for count in grid)
    places = torch.cartesian_prod(rows, columns) * step
    return torch.cdist(places, places)


def spread_of(rows: Tensor) -> Tensor:
    """exp(entropy) of distributions [..., keys], [...]."""
    return torch.exp(-torch.special.xlogy(rows, rows).sum(dim=-1))


def _distances_of(model: Model, size: tuple[int, int]) -> Tensor | None:
    """Distances of the patches that images of that size are cut into; None for a backbone that does not tell."""
    grid, step = model.patch_grid(*size), model.patch_size
    return None if grid is None or step is None else distances_between(grid, step=step)


def _as_distributions(rows: Tensor) -> Tensor:
    rows = rows.abs()
    return rows / rows.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
