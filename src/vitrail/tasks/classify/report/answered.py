"""The answers of the last evaluation of a run, and the names of the classes, as its folder keeps them."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.evaluation.class_scores import ClassScores
from vitrail.storage import read_json_object
from vitrail.tasks.contract import RunReader


@dataclass(frozen=True)
class Classes:
    """The names of the classes and, where there is a coarser level, to which of its classes each belongs."""

    names: tuple[str, ...] = ()
    coarse_names: tuple[str, ...] = ()
    coarse_of: tuple[int, ...] = ()

    def name(self, index: int) -> str:
        """The name of a class; its number where the names are not known."""
        return self.names[index] if 0 <= index < len(self.names) else f"class {index}"

    def coarse(self, index: int) -> str | None:
        """The coarse class of a class."""
        return self.coarse_names[self.coarse_of[index]] if index < len(self.coarse_of) else None


@dataclass(frozen=True, eq=False)
class Predictions:
    """The answers of an evaluation to the images that have a label; all arrays are [images]."""

    indices: np.ndarray  # places in the data set
    targets: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray  # probability of the predicted class
    target_probability: np.ndarray

    @property
    def is_right(self) -> np.ndarray:
        """Which answers are right."""
        return self.predicted == self.targets


def read_classes(run: RunReader) -> Classes:
    """The names of the classes; none where the folder does not have them."""
    nothing = Classes()
    return run.read("task.json", _read_classes, run.read("classes.json", _read_classes, nothing))


def read_predictions(run: RunReader) -> Predictions | None:
    """The answers to the images that have a label; None where there are none."""
    return run.read("predictions.npz", _read_predictions, None)


def read_scores(run: RunReader) -> ClassScores | None:
    """What the answers come to by class; None where the folder does not have it."""
    return run.read("classes.csv", _read_scores, None)


def _read_scores(path: Path) -> ClassScores | None:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [[int(row[column]) for column in ("count", "num_answers", "num_right")] for row in csv.DictReader(file)]
    counts = np.array(rows, dtype=np.int64).reshape(-1, 3)
    if not (counts >= 0).all():
        raise ValueError("counts fewer images than none")
    return ClassScores(*counts.T) if counts[:, 0].any() else None


def _read_classes(path: Path) -> Classes:
    content = read_json_object(path, remedy="the report goes without it")
    names = tuple(str(name) for name in content["classes"])
    coarse = content.get("coarse")
    if not coarse:
        return Classes(names)
    coarse_names, coarse_of = tuple(str(name) for name in coarse["classes"]), tuple(int(of) for of in coarse["of"])
    if len(coarse_of) != len(names) or not all(0 <= of < len(coarse_names) for of in coarse_of):
        raise ValueError("gives no coarse class for each class")
    return Classes(names, coarse_names, coarse_of)


def _read_predictions(path: Path) -> Predictions | None:
    with np.load(path, allow_pickle=False) as arrays:
        indices, targets, predicted = (arrays[name] for name in ("indices", "targets", "predicted"))
        confidence, target_probability = arrays["confidence"], arrays["target_probability"]
    columns = (indices, targets, predicted, confidence, target_probability)
    if any(column.shape != indices.shape or column.ndim != 1 for column in columns):
        raise ValueError("its arrays are not all of one length")
    has_label = (targets >= 0) & (predicted >= 0)
    if not has_label.any():
        return None
    return Predictions(
        indices=indices[has_label].astype(np.int64),
        targets=targets[has_label].astype(np.int64),
        predicted=predicted[has_label].astype(np.int64),
        confidence=np.nan_to_num(confidence[has_label].astype(np.float64)),
        target_probability=np.nan_to_num(target_probability[has_label].astype(np.float64)),
    )
