"""How well embeddings spread the images of a class: can a linear classifier tell random sub-classes (thesis 2.2.1)?"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Level
from vitrail.evaluation.linear_probe import LogisticProblem
from vitrail.evaluation.probe_data import Labelled, measure_main

NUM_SPLITS = 10  # the thesis's
_PENALTY = 1e-5  # so weak that it only keeps the solution finite
_TOLERANCE = 1e-5
_TINY = 1e-30  # probabilities below it count as it


@dataclass(frozen=True)
class Separability:
    """A row of table 2.1: top-1 on the training images in percent, mean and deviation over the random splits."""

    top1: float
    deviation: float
    conditional: float | None  # the same with the coarse class predicted first; None: there is no coarse classifier
    conditional_deviation: float | None


def draw_sublabels(level: Level, *, num_parts: int = 2, seed: int = 0) -> Level:
    """Each class split at random and evenly into `num_parts`; parts of a class follow each other in the classes."""
    if level.is_multiple:
        raise ValueError("random sub-labels need one label for each image")
    if num_parts < 2:
        raise ValueError(f"a class is split into at least 2 parts, not {num_parts}")
    labels = np.full(len(level.labels), -1, dtype=np.int64)
    generator = torch.Generator().manual_seed(seed)
    for number in range(len(level.classes)):
        places = np.flatnonzero(level.labels == number)
        shuffled = places[torch.randperm(len(places), generator=generator).numpy()]
        labels[shuffled] = number * num_parts + np.arange(len(places)) % num_parts
    classes = tuple(f"{name} {part}" for name in level.classes for part in range(1, num_parts + 1))
    return Level(classes, labels)


def measure_separability(
    vectors: Tensor,
    level: Level,
    *,
    probabilities: Tensor | None = None,
    num_splits: int = NUM_SPLITS,
    num_parts: int = 2,
    advance: Callable[[int], object] | None = None,
) -> Separability:
    """Random sub-labels of the training images, a linear classifier of them, and how many it gets right of the same.

    `vectors` [images, dim] are the images' embeddings and `level` their coarse labels. `probabilities` [images, coarse
    classes] are those of the coarse classifier: with them p(sub-class) = p(coarse class) p(sub-class | coarse class).
    """
    if num_splits < 1:
        raise ValueError(f"the number of random splits must be at least 1, not {num_splits}")
    known = torch.from_numpy(np.flatnonzero(level.labels >= 0))
    if not len(known):
        raise ValueError("no image has a label: there is nothing to split")
    vectors = vectors[known]
    start = _fit(vectors, level, known).repeat_interleave(num_parts, dim=0)  # sub-classes start alike
    plain, conditional = [], []
    for seed in range(num_splits):
        sub = draw_sublabels(level, num_parts=num_parts, seed=seed)
        problem = _problem(vectors, sub, known)
        logits = problem.classifier(problem.solve(_PENALTY, start=start, tolerance=_TOLERANCE))(vectors)
        plain.append(measure_main(logits, problem.targets))
        if probabilities is not None:
            joint = condition_parts(logits, probabilities[known], num_parts=num_parts)
            conditional.append(measure_main(joint, problem.targets))
        if advance is not None:
            advance(1)
    return Separability(*_summarize(plain), *(_summarize(conditional) if conditional else (None, None)))


def condition_parts(logits: Tensor, probabilities: Tensor, *, num_parts: int) -> Tensor:
    """The logarithm of p(coarse class) p(sub-class | coarse class), [images, sub-classes], from the logits of the
    sub-classes and the probabilities [images, coarse classes] of a classifier of its own."""
    within = logits.unflatten(1, (-1, num_parts)).log_softmax(dim=2)
    return (within + probabilities.clamp(min=_TINY).log()[:, :, None]).flatten(1)


def _fit(vectors: Tensor, level: Level, known: Tensor) -> Tensor:
    problem = _problem(vectors, level, known)
    return problem.solve(_PENALTY, start=problem.start, tolerance=_TOLERANCE)


def _problem(vectors: Tensor, level: Level, known: Tensor) -> LogisticProblem:
    targets = torch.from_numpy(np.array(level.labels, dtype=np.int64))[known]
    return LogisticProblem(Labelled(vectors, targets, len(level.classes)), dtype=torch.float32)


def _summarize(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
