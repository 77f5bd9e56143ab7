"""On-the-fly classification by the nearest training images, weighted by their similarity (thesis 2.3.3)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.probe_data import Fitted, Labelled, measure_main
from vitrail.evaluation.ranking import TEMPERATURE, Conditioning, row_chunks, score

THESIS_CHOICES = (10, 15, 20, 25, 30)  # numbers of neighbours that the thesis chooses from (2.4.3)
PROBE_CHOICES = tuple(range(1, 51))
_MAX_ASKED = 10_000  # training images that choose the number of neighbours
_BLOCK, _GROUP = 4096, 64  # images that are scored at a time (their scores stay in the cache), and looked at together


def fit_neighbours(train: Labelled, *, choices: Sequence[int] = PROBE_CHOICES, seed: int = 0) -> Fitted:
    """The k nearest training images by cosine, each with the weight exp(cosine / 0.05), equation 2.6.

    k, one of the `choices`, is the one that answers best for the training images themselves (for a part of them where
    they are many), each held out: without its own help. Of those that are equally good it is the smallest.
    """
    base = functional.normalize(train.vectors, dim=1)
    if len(train) < 2:
        raise ValueError("there is one training image: the number of neighbours can't be chosen")
    usable = sorted({min(choice, len(train) - 1) for choice in choices})
    asked = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:_MAX_ASKED].to(base.device)
    similarities, places = find_neighbours(base[asked], base, count=usable[-1], without=asked)
    targets = train.targets[asked]
    figures: dict[int, float] = {}
    scores, counted = base.new_zeros(len(asked), train.num_classes), 0
    for choice in usable:
        more = slice(counted, choice)
        scores, counted = _add_neighbours(scores, similarities[:, more], places[:, more], train), choice
        figures[choice] = measure_main(scores, targets)
    best = max(usable, key=figures.__getitem__)

    def score_all(vectors: Tensor) -> Tensor:
        return score_neighbours(functional.normalize(vectors, dim=1), base, train, count=best)

    return Fitted(score_all, {"neighbours": best}, figures[best])


def find_neighbours(
    queries: Tensor,
    base: Tensor,
    *,
    count: int,
    without: Tensor | None = None,
    conditioning: Conditioning | None = None,
) -> tuple[Tensor, Tensor]:
    """Scores and places in `base` of the `count` that score best for each query, best first: [queries, count] each.

    Vectors are of length 1, and the score is their cosine unless a `conditioning` adds to it. `without` names a place
    for each query that does not count. Only a block of queries and images is compared at a time, so that memory does
    not grow with either; the base may be in half precision.
    """
    found = [
        _find_for_rows(
            queries[rows],
            base,
            count=count,
            without=None if without is None else without[rows],
            conditioning=None if conditioning is None else conditioning.choose(rows),
        )
        for rows in row_chunks(len(queries))
    ]
    if not found:
        return queries.new_zeros(0, count), torch.zeros(0, count, dtype=torch.int64, device=queries.device)
    return torch.cat([values for values, _ in found]), torch.cat([places for _, places in found])


def score_neighbours(queries: Tensor, base: Tensor, train: Labelled, *, count: int) -> Tensor:
    """Equation 2.6 up to its constant, as logarithms [queries, classes]; -inf for classes without a neighbour."""
    similarities, places = find_neighbours(queries, base, count=count)
    scores = _add_neighbours(base.new_zeros(len(queries), train.num_classes), similarities, places, train)
    return scores.log()


def weigh(similarities: Tensor) -> Tensor:
    """What a neighbour counts in equation 2.6, divided by what one at cosine 1 would."""
    return torch.exp((similarities - 1.0) / TEMPERATURE)


def _find_for_rows(
    queries: Tensor, base: Tensor, *, count: int, without: Tensor | None, conditioning: Conditioning | None
) -> tuple[Tensor, Tensor]:
    """The best of block after block, with the best so far among them."""
    values = queries.new_zeros(len(queries), 0, dtype=queries.dtype if conditioning is None else torch.float64)
    places = torch.zeros(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(base), _BLOCK):
        scores = score(queries, base[start : start + _BLOCK], conditioning=conditioning, start=start)
        if without is not None:
            rows = ((without >= start) & (without < start + scores.shape[1])).nonzero()[:, 0]
            scores[rows, without[rows] - start] = -torch.inf
        if values.shape[1] < count:
            new = scores.topk(min(count, scores.shape[1]), dim=1)
            values, places = _merge(values, places, new.values, new.indices + start, count=count)
        else:
            _take_better(scores, values, places, start=start)
    return values, places


def _take_better(scores: Tensor, values: Tensor, places: Tensor, *, start: int) -> None:
    """Put the scores of a block that are better than the worst of `values` in their place.

    They are few but in the first blocks. So the maximum of each group of images is looked at first, which is many
    times faster than sorting all, and only groups that hold something better are merged.
    """
    group = _GROUP if scores.shape[1] % _GROUP == 0 else 1
    grouped = scores.unflatten(1, (-1, group))
    hit_rows, hit_groups = (grouped.amax(dim=2) > values[:, -1:]).nonzero(as_tuple=True)
    if not len(hit_rows):
        return
    rows, counts = hit_rows.unique_consecutive(return_counts=True)
    line = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)
    nth = torch.arange(len(line), device=rows.device) - (counts.cumsum(0) - counts)[line]
    width = int(counts.max())
    better = scores.new_full((len(rows), width, group), -torch.inf)
    better[line, nth] = grouped[hit_rows, hit_groups]
    where = torch.zeros_like(better, dtype=torch.int64)
    where[line, nth] = start + hit_groups[:, None] * group + torch.arange(group, device=rows.device)
    values[rows], places[rows] = _merge(
        values[rows], places[rows], better.flatten(1), where.flatten(1), count=values.shape[1]
    )


def _merge(
    values: Tensor, places: Tensor, new_values: Tensor, new_places: Tensor, *, count: int
) -> tuple[Tensor, Tensor]:
    """The best of both, best first."""
    merged = torch.cat([values, new_values], dim=1)
    best = merged.topk(min(count, merged.shape[1]), dim=1)
    return best.values, torch.cat([places, new_places], dim=1).gather(1, best.indices)


def _add_neighbours(scores: Tensor, similarities: Tensor, places: Tensor, train: Labelled) -> Tensor:
    weights = weigh(similarities)
    if not train.is_multiple:
        return scores.scatter_add(1, train.targets[places], weights)
    for rank in range(places.shape[1]):
        scores = scores + weights[:, rank, None] * train.targets[places[:, rank]]
    return scores
