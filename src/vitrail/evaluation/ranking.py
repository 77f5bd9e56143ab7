"""How an image is scored against a collection: by cosine, or conditioned by its coarse class (thesis 2.3.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

TEMPERATURE = 0.05  # sigma, the thesis's in all its experiments (2.4.3)
RANKINGS = ("cosine", "conditional", "oracle")
_MAX_CELLS = 8_000_000  # scores that are held at a time: 64 MB of them in float64
_BLOCK = 16_384  # images that queries are compared with at a time, where not all are needed at once
_FIRST = 4.0  # more than two cosines can differ by
_TINY = 1e-30  # probabilities below it, and distances from 1, count as it


@dataclass(frozen=True, eq=False)
class Conditioning:
    """What is added to each cosine: it depends on the query and on the coarse class of the image."""

    bonus: Tensor  # float64 [queries, coarse classes + 1]; the last column is for images without a coarse class
    coarse: Tensor  # int64 [images]: their coarse class; -1, the last column, without one

    def choose(self, queries: Tensor | slice) -> "Conditioning":
        """The conditioning of some of the queries."""
        return Conditioning(self.bonus[queries], self.coarse)


def condition(probabilities: Tensor, coarse: Tensor) -> Conditioning:
    """Equation 2.5: the logarithm of the odds that the query [queries, coarse classes] is of the image's coarse class.

    An image whose coarse class is not known (-1) gets what is to be expected: the mean of the classes' by their
    probabilities. With nothing added it would come before all others wherever no class is likely.
    """
    exact = probabilities.double()
    others = (exact.sum(dim=1, keepdim=True) - exact).clamp(min=_TINY)
    odds = (exact.clamp(min=_TINY) / others).log()
    return Conditioning(torch.cat([odds, (exact * odds).sum(dim=1, keepdim=True)], dim=1), coarse)


def condition_by_oracle(known: Tensor, coarse: Tensor, *, num_classes: int) -> Conditioning:
    """Images of the query's own coarse class `known` [queries] come first; -1: nobody knows it."""
    bonus = torch.zeros(len(known), num_classes + 1, dtype=torch.float64, device=known.device)
    rows = (known >= 0).nonzero()[:, 0]
    bonus[rows, known[rows]] = _FIRST
    return Conditioning(bonus, coarse)


def score(queries: Tensor, images: Tensor, *, conditioning: Conditioning | None = None, start: int = 0) -> Tensor:
    """Scores [queries, images] of vectors of length 1; `start` is the place of the first image in the collection.

    Conditioned ones are in float64, because a large bonus would take the last digits of a cosine in float32.
    """
    cosines = queries @ images.to(queries.dtype).T
    if conditioning is None:
        return cosines
    return cosines.double() + conditioning.bonus[:, conditioning.coarse[start : start + len(images)]]


def predict_coarse(queries: Tensor, images: Tensor, coarse: Tensor, *, num_classes: int) -> Tensor:
    """The probability of each coarse class [queries, classes]: equation 2.2 over all images, summed by class.

    Vectors are of length 1. Images without a coarse class take no part.
    """
    is_known = coarse >= 0
    places = coarse.clamp(min=0)
    sums = torch.zeros(len(queries), num_classes, dtype=torch.float64, device=queries.device)
    for rows in row_chunks(len(queries)):
        for start in range(0, len(images), _BLOCK):
            of = slice(start, start + _BLOCK)
            weights = torch.exp((score(queries[rows], images[of]) - 1.0) / TEMPERATURE).double() * is_known[of]
            sums[rows] = sums[rows].index_add(1, places[of], weights)
    return sums / sums.sum(dim=1, keepdim=True).clamp(min=_TINY)


def row_chunks(num_rows: int, *, width: int | None = None) -> list[slice]:
    """Rows of a matrix so wide (a block of images, unless told), as many at a time as memory is meant for."""
    step = max(1, _MAX_CELLS // max(1, width or _BLOCK))
    return [slice(start, start + step) for start in range(0, num_rows, step)]
