"""What a run measures on val: the answers of its classifier, or of whatever answers with classes in its place."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import nn

from vitrail.data.contract import ImageBatch
from vitrail.data.loader import Loader
from vitrail.evaluation.average_precision import AveragePrecisionMeter
from vitrail.evaluation.class_scores import COLUMNS, ClassScores
from vitrail.evaluation.classify import ClassificationMeter
from vitrail.evaluation.predict import predict
from vitrail.storage import csv_text, write_text
from vitrail.tasks.classify.predictions import answers, write_predictions
from vitrail.tasks.images.image_task import ImageTask
from vitrail.tasks.results import Evaluator

PREDICTIONS_FILE = "predictions.npz"
SCORES_FILE = "classes.csv"


class ClassificationEvaluator(Evaluator):
    """Accuracy on val, exact over all processes; the answers are kept for the report."""

    def __init__(self, task: ImageTask, loader: Loader[ImageBatch]) -> None:
        self.task, self.loader = task, loader
        self._columns = np.zeros((5, 0))
        self._scores: ClassScores | None = None

    def answering_model(self, model: nn.Module) -> nn.Module:
        """What gives logits for images."""
        return model

    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Figures of a classifier on all images of val."""
        task, site = self.task, self.task.site
        meter = ClassificationMeter(task.data.num_classes, coarse_of=task.data.coarse_of)
        precision = AveragePrecisionMeter(task.data.num_classes) if task.data.labels.is_multiple else None
        columns: list[np.ndarray] = []
        found = predict(
            self.answering_model(model),
            task.evaluation_batches(self.loader),
            normalize=task.normalize,
            device=site.device,
            dtype=site.dtype,
            num_lanes=site.num_lanes,
        )
        for logits, batch in found:
            if len(batch.indices) == 0:
                continue
            meter.update(logits, batch.targets)
            if precision is not None:
                precision.update(logits, batch.targets)
            columns.append(answers(logits, batch))
        site.world.sum(meter.totals)
        parts = site.world.gather(np.concatenate(columns, axis=1) if columns else np.zeros((5, 0)))
        self._columns = np.concatenate(parts, axis=1)
        self._scores = meter.class_scores()
        yield from meter.results()
        if precision is not None:
            precision = AveragePrecisionMeter.joined(site.world.gather(precision))
            self._scores = precision.class_scores()
            yield from precision.results()
            yield from self._scores.results()

    def write(self, folder: Path) -> None:
        """The answers, for the report, and what they come to by class."""
        write_predictions(folder / PREDICTIONS_FILE, self._columns)
        if self._scores is not None:
            rows = self._scores.rows(self.task.data.labels.classes)
            write_text(folder / SCORES_FILE, csv_text(rows, columns=COLUMNS), errors="backslashreplace")
