"""Precision, recall and F1 of each class, and their means over classes (macro averages)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

COLUMNS = ("class", "count", "num_answers", "num_right", "precision", "recall", "f1")  # of a record of a class


@dataclass(frozen=True, eq=False)
class ClassScores:
    """Answers counted by class, and the percentages that follow from them; all arrays are [classes].

    A class that no image was given has precision 0, as in scikit-learn with `zero_division=0`. Means are those of the
    classes that have images, all alike, however many each has.
    """

    num_images: np.ndarray  # whose label is the class
    num_answers: np.ndarray  # that were given the class, rightly or not
    num_right: np.ndarray

    @property
    def has_images(self) -> np.ndarray:
        """Which classes there is something to measure of."""
        return self.num_images > 0

    @property
    def precision(self) -> np.ndarray:
        """How many of the answers with the class are right, in percent."""
        return 100.0 * self.num_right / np.maximum(self.num_answers, 1)

    @property
    def recall(self) -> np.ndarray:
        """How many of the images of the class are found, in percent; 0 where it has none."""
        return 100.0 * self.num_right / np.maximum(self.num_images, 1)

    @property
    def f1(self) -> np.ndarray:
        """The harmonic mean of precision and recall, in percent."""
        return 200.0 * self.num_right / np.maximum(self.num_answers + self.num_images, 1)

    def results(self) -> Iterator[tuple[str, float]]:
        """Names and macro averages; the mean recall, `class_mean_top1`, is the balanced accuracy."""
        for name, values in (
            ("class_mean_top1", self.recall),
            ("macro_precision", self.precision),
            ("macro_f1", self.f1),
        ):
            yield name, float(values[self.has_images].mean())

    def rows(self, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
        """A record for each class; what can't be said of a class without images is None."""
        columns = (self.num_images, self.num_answers, self.num_right, self.precision, self.recall, self.f1)
        for name, *found in zip(classes, *(column.tolist() for column in columns), strict=True):
            row = dict(zip(COLUMNS, (name, *found), strict=True))
            yield row if row["count"] else row | dict.fromkeys(COLUMNS[-3:])
