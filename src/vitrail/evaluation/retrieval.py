"""Category-level retrieval: is what ranks first of the query's class (thesis 2.3.2 and 2.4.1)?"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.knn import THESIS_CHOICES, fit_neighbours, score_neighbours
from vitrail.evaluation.probe_data import Labelled, measure
from vitrail.evaluation.ranking import (
    RANKINGS,
    Conditioning,
    condition,
    condition_by_oracle,
    predict_coarse,
    row_chunks,
    score,
)

_COSINE, _, _ORACLE = RANKINGS


@dataclass(frozen=True, eq=False)
class Levelled:
    """Embeddings of length 1 with labels of several levels, such as genus and species."""

    vectors: Tensor  # float32 [images, dim]
    labels: Mapping[str, Tensor]  # int64 [images] for each level; -1 without a label
    num_classes: Mapping[str, int]  # for each level

    @classmethod
    def of(cls, vectors: Tensor, labels: Mapping[str, Tensor], *, num_classes: Mapping[str, int]) -> "Levelled":
        """Embeddings as a model gives them."""
        return cls(functional.normalize(vectors.float(), dim=1), labels, num_classes)

    def at(self, level: str) -> Labelled:
        """The images that have a label of that level, with it."""
        is_known = self.labels[level] >= 0
        return Labelled(self.vectors[is_known], self.labels[level][is_known], self.num_classes[level])

    def choose(self, places: Tensor) -> "Levelled":
        """Some of the images."""
        return Levelled(
            self.vectors[places], {name: labels[places] for name, labels in self.labels.items()}, self.num_classes
        )


def average_precisions(
    queries: Tensor,
    query_labels: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    conditioning: Conditioning | None = None,
    without: Tensor | None = None,
) -> Tensor:
    """The average precision [queries], from 0 to 1, of ranking all images for each query; nan where none is right.

    Vectors are of length 1; an image is right when its label is the query's. It is exact, without interpolation, and
    images of equal scores are taken together. `without` names a place for each query that does not count, for queries
    that are in the collection. Only some rows of the matrix of scores are held at a time.
    """
    order, sizes = _group(labels)
    images, labels = images[order], labels[order]
    if conditioning is not None:
        conditioning = Conditioning(conditioning.bonus, conditioning.coarse[order])
    places = None if without is None else torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))[without]
    found = torch.full((len(queries),), torch.nan, dtype=torch.float64)
    by_label = query_labels.argsort(stable=True)
    for chunk in row_chunks(len(queries), width=len(images)):
        rows = by_label[chunk]
        part = None if conditioning is None else conditioning.choose(rows)
        scores = score(queries[rows], images, conditioning=part)
        if places is not None:
            scores.scatter_(1, places[rows][:, None], -torch.inf)
        start = 0
        for label, count in zip(*query_labels[rows].unique_consecutive(return_counts=True), strict=True):
            own = rows[start : start + int(count)]
            span = sizes.get(int(label))
            if span is not None:
                found[own] = _precisions(scores[start : start + int(count)], span)
            start += int(count)
    return found


def mean_average_precision(precisions: Tensor) -> float:
    """The mean average precision in percent, over the queries that have an image to be found."""
    if bool(precisions.isnan().all()):
        raise ValueError("no query has an image of its class in the collection: there is nothing to rank")
    return 100.0 * precisions.nanmean().item()


def make_conditioning(
    ranking: str, queries: Levelled, images: Levelled, *, coarse: str, probabilities: Tensor | None = None
) -> Conditioning | None:
    """What a ranking adds to the cosines, with the labels of the level `coarse`.

    The coarse classes of the queries are known for the oracle. Else they have these `probabilities` [queries, coarse
    classes], such as a classifier gives, or are predicted from all images, each voting as in equation 2.2.
    """
    if ranking not in RANKINGS:
        raise ValueError(f"rank must be one of {', '.join(RANKINGS)}, not {ranking!r}")
    if ranking == _COSINE:
        return None
    labels, num_classes = images.labels[coarse], images.num_classes[coarse]
    if ranking == _ORACLE:
        return condition_by_oracle(queries.labels[coarse], labels, num_classes=num_classes)
    if probabilities is None:
        probabilities = predict_coarse(queries.vectors, images.vectors, labels, num_classes=num_classes)
    return condition(probabilities, labels)


def evaluate_level(
    queries: Levelled,
    images: Levelled,
    level: str,
    *,
    coarse: str | None = None,
    probabilities: Tensor | None = None,
    neighbours: int | None = None,
    unlabelled_vote: bool = False,
) -> dict[str, float]:
    """The figures of one model at one test level, in percent: kNN top-1 and top-5, and the mAP of each ranking.

    `coarse` is the level that the conditional ranking and the oracle go by, None: there is only the cosine;
    `probabilities` are as for `make_conditioning`. The number of neighbours is chosen on the images of the collection
    alone, unless it is given. With `unlabelled_vote`, images without a label are neighbours too, for no class.
    """
    asked = (queries.labels[level] >= 0).nonzero()[:, 0]
    train, chosen = images.at(level), queries.choose(asked)
    targets = chosen.labels[level]
    if not len(asked) or not len(train):
        raise ValueError(f"there are no labels {level!r} to measure by")
    if neighbours is None:
        neighbours = int(fit_neighbours(train, choices=THESIS_CHOICES).setting["neighbours"])
    if unlabelled_vote:
        own, num_classes = images.labels[level], images.num_classes[level]
        train = Labelled(images.vectors, own.where(own >= 0, num_classes), num_classes + 1)
    scores = score_neighbours(chosen.vectors, train.vectors, train, count=min(neighbours, len(train)))
    figures = {"num_images": len(asked), **measure(scores, targets), "neighbours": neighbours}
    if probabilities is not None:
        probabilities = probabilities[asked]
    for ranking in RANKINGS if coarse is not None else RANKINGS[:1]:
        conditioning = None
        if coarse is not None:
            conditioning = make_conditioning(ranking, chosen, images, coarse=coarse, probabilities=probabilities)
        precisions = average_precisions(
            chosen.vectors, targets, images.vectors, images.labels[level], conditioning=conditioning
        )
        figures[f"map_{ranking}"] = mean_average_precision(precisions)
    return figures


def _group(labels: Tensor) -> tuple[Tensor, dict[int, slice]]:
    """An order in which images of one label are neighbours, and where each label then is; -1 is none."""
    order = labels.argsort(stable=True)
    spans, start = {}, 0
    for label, count in zip(*labels[order].unique_consecutive(return_counts=True), strict=True):
        if label >= 0:
            spans[int(label)] = slice(start, start + int(count))
        start += int(count)
    return order, spans


def _precisions(scores: Tensor, right: slice) -> Tensor:
    """Average precisions of rows [queries, images] in which the images of the slice are right.

    An image that is right has precision (right ones that score as much) / (images that score as much). Sorted scores
    tell both, without the order of the images: NumPy sorts plain numbers ten times faster than torch.
    """
    ranked = torch.from_numpy(np.sort(scores.cpu().numpy(), axis=1))
    own = torch.from_numpy(np.sort(scores[:, right].cpu().numpy(), axis=1))
    is_found = own > -torch.inf  # a query does not find itself
    num_taken = ranked.shape[1] - torch.searchsorted(ranked, own)
    num_right = own.shape[1] - torch.searchsorted(own, own)
    precisions = (num_right.double() / num_taken).masked_fill(~is_found, 0.0)
    return precisions.sum(dim=1) / is_found.sum(dim=1)  # 0 / 0, nan, where there is none but itself
