"""Classification by the nearest training images, weighted by their similarity (thesis 2.3.3, equation 2.6)."""

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.probe_data import Fitted, Labelled, measure_main

TEMPERATURE = 0.05  # sigma, the thesis's in all its experiments (2.4.2)
MAX_NEIGHBOURS = 50
_CHUNK = 1024  # queries whose similarities to all training images are held at a time
_MAX_ASKED = 10_000  # training images that choose the number of neighbours


def fit_neighbours(train: Labelled, *, max_neighbours: int = MAX_NEIGHBOURS, seed: int = 0) -> Fitted:
    """The k nearest training images by cosine, each with the weight exp(cosine / 0.05).

    k, from 1 to `max_neighbours`, is the one that answers best for the training images themselves (for a part of them
    where they are many), each without its own help.
    """
    base = functional.normalize(train.vectors, dim=1)
    most = min(max_neighbours, len(train) - 1)
    asked = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:_MAX_ASKED].to(base.device)
    similarities, places = find_neighbours(base[asked], base, count=most, without=asked)
    targets = train.targets[asked]
    figures = []
    scores = base.new_zeros(len(asked), train.num_classes)
    for rank in range(most):
        scores = _add_neighbours(scores, similarities[:, rank : rank + 1], places[:, rank : rank + 1], train)
        figures.append(measure_main(scores, targets))
    best = max(range(most), key=figures.__getitem__)  # the fewest of those that are equally good

    def score(vectors: Tensor) -> Tensor:
        return score_neighbours(functional.normalize(vectors, dim=1), base, train, count=best + 1)

    return Fitted(score, {"neighbours": best + 1}, figures[best])


def find_neighbours(
    queries: Tensor, base: Tensor, *, count: int, without: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and places in `base` of the `count` nearest to each query, nearest first: [queries, count] each.

    Both are of length 1. `without` names a place for each query that does not count. No more than a chunk of queries
    is compared with all of the base at a time.
    """
    found = []
    for start in range(0, len(queries), _CHUNK):
        similarities = queries[start : start + _CHUNK] @ base.T
        if without is not None:
            similarities.scatter_(1, without[start : start + _CHUNK, None], -torch.inf)
        found.append(similarities.topk(count, dim=1))
    return torch.cat([pair.values for pair in found]), torch.cat([pair.indices for pair in found])


def score_neighbours(queries: Tensor, base: Tensor, train: Labelled, *, count: int) -> Tensor:
    """Equation 2.6 up to its constant, as logarithms [queries, classes]; -inf for classes without a neighbour."""
    similarities, places = find_neighbours(queries, base, count=count)
    scores = _add_neighbours(base.new_zeros(len(queries), train.num_classes), similarities, places, train)
    return scores.log()


def _add_neighbours(scores: Tensor, similarities: Tensor, places: Tensor, train: Labelled) -> Tensor:
    weights = torch.exp((similarities - 1.0) / TEMPERATURE)  # the largest is 1
    if not train.is_multiple:
        return scores.scatter_add(1, train.targets[places], weights)
    for rank in range(places.shape[1]):
        scores = scores + weights[:, rank, None] * train.targets[places[:, rank]]
    return scores
