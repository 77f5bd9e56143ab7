"""What the answers of an evaluation come to: mistakes by class and by pair of classes, and how far to trust them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vitrail.evaluation.class_scores import ClassScores
from vitrail.evaluation.classify import NUM_BINS
from vitrail.tasks.classify.report.answered import Predictions


class Pair(NamedTuple):
    """Images of one class that were taken for another."""

    target: int
    predicted: int
    num_images: int
    share: float  # of the images of that class


@dataclass(frozen=True, eq=False)
class Mistakes:
    """Answers counted by class; a table of all pairs of classes would not fit for thousands of them."""

    num_images: np.ndarray  # [classes]
    num_right: np.ndarray  # [classes]
    num_answers: np.ndarray  # [classes]: images that were given the class, rightly or not
    num_involved: np.ndarray  # [classes]: mistakes with the class as the truth or as the answer
    pairs: tuple[Pair, ...]  # the mistakes, the most frequent first

    @property
    def seen(self) -> np.ndarray:
        """The classes that have images, the worst first."""
        seen = np.flatnonzero(self.num_images)
        return seen[np.argsort(self.accuracy[seen], kind="stable")]

    @property
    def accuracy(self) -> np.ndarray:
        """Top-1 percentage of each class, [classes]; 0 where there are no images."""
        return 100.0 * self.num_right / np.maximum(self.num_images, 1)

    @property
    def scores(self) -> ClassScores:
        """Precision, recall and F1 of each class."""
        return ClassScores(self.num_images, self.num_answers, self.num_right)

    @property
    def num_mistakes(self) -> int:
        """Count the mistakes of all classes."""
        return int(self.num_images.sum() - self.num_right.sum())


def count_mistakes(predictions: Predictions, *, num_classes: int) -> Mistakes:
    """Count answers by class; there may be more classes in them than are named."""
    targets, predicted, is_right = predictions.targets, predictions.predicted, predictions.is_right
    num_classes = max(num_classes, int(targets.max()) + 1, int(predicted.max()) + 1)
    num_images = np.bincount(targets, minlength=num_classes)
    wrong = targets[~is_right] * num_classes + predicted[~is_right]
    keys, counts = np.unique(wrong, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return Mistakes(
        num_images=num_images,
        num_right=np.bincount(targets[is_right], minlength=num_classes),
        num_answers=np.bincount(predicted, minlength=num_classes),
        num_involved=np.bincount(targets[~is_right], minlength=num_classes)
        + np.bincount(predicted[~is_right], minlength=num_classes),
        pairs=tuple(
            Pair(key // num_classes, key % num_classes, count, count / int(num_images[key // num_classes]))
            for key, count in zip(keys[order].tolist(), counts[order].tolist(), strict=True)
        ),
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often answers of a given confidence are right, in bins of confidence; [bins]."""

    count: np.ndarray
    confidence: np.ndarray  # mean of the bin, 0 where it is empty
    accuracy: np.ndarray

    @property
    def error(self) -> float:
        """The expected gap between confidence and accuracy, in points."""
        return float(100.0 * (self.count * np.abs(self.confidence - self.accuracy)).sum() / self.count.sum())

    @property
    def verdict(self) -> str:
        """One line for a person."""
        said, was = (100.0 * (self.count * part).sum() / self.count.sum() for part in (self.confidence, self.accuracy))
        if self.error < 2:
            judgement = "The probabilities can be taken at their word"
        elif abs(said - was) < 0.5 * self.error:
            judgement = "The probabilities are off in both directions"
        else:
            judgement = (
                "The model is too sure of itself" if said > was else "The model is right more often than it says"
            )
        return (
            f"{judgement}: its mean confidence is {said:.1f} %, and {was:.1f} % of its answers are right "
            f"(calibration error {self.error:.1f} points)."
        )


def calibrate(predictions: Predictions) -> Calibration:
    """Sort the answers into equally wide bins of confidence, open below and closed above."""
    place = np.clip(np.ceil(predictions.confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    count = np.bincount(place, minlength=NUM_BINS)
    weighted = [np.bincount(place, part, NUM_BINS) for part in (predictions.confidence, predictions.is_right)]
    confidence, accuracy = (total / np.maximum(count, 1) for total in weighted)
    return Calibration(count=count, confidence=confidence, accuracy=accuracy)


def find_most_wrong(predictions: Predictions, *, limit: int) -> list[int]:
    """Places in the arrays of the wrong answers, the surest first."""
    wrong = np.flatnonzero(~predictions.is_right)
    return wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:limit].tolist()
