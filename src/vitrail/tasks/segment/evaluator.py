"""How good the masks of val are, and what the report shows of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

from vitrail.data.dense.class_table import apply_table
from vitrail.data.dense.contract import MaskBatch
from vitrail.data.loader import Loader
from vitrail.evaluation.segmentation import COLUMNS, MaskMeter, describe_counts
from vitrail.evaluation.segmenting import Segmenter, segment
from vitrail.models.contract import Model
from vitrail.storage import csv_text, write_json, write_text
from vitrail.tasks.results import Evaluator
from vitrail.tasks.segment.mask_drawing import Compared, write_comparison

if TYPE_CHECKING:
    from vitrail.tasks.segment.task import Segment

COUNTS_FILE, CLASSES_FILE, WORST_FILE = "pixels.json", "classes.csv", "worst_masks.png"
_NUM_WORST = 6


class WorstMask(NamedTuple):
    """An image whose mask is among the worst."""

    mean_iou: float  # of this image alone
    number: int  # place of the image in val
    pixels: np.ndarray  # uint8 [3, height, width]
    truth: np.ndarray  # uint8 [height, width]
    answer: np.ndarray  # uint8 [height, width]


class WorstMasks:
    """The worst masks of those that were seen."""

    def __init__(self) -> None:
        self.found: list[WorstMask] = []

    def join(self, others: list[WorstMask]) -> None:
        """Take in the worst masks of others; what comes first does not matter."""
        self.found = sorted([*self.found, *others], key=lambda one: (one.mean_iou, one.number))[:_NUM_WORST]

    def is_worse(self, mean_iou: float) -> bool:
        """Whether a mask of that figure is worth keeping."""
        return len(self.found) < _NUM_WORST or mean_iou <= self.found[-1].mean_iou


class SegmentEvaluator(Evaluator):
    """Pixels of all images of val, counted by their true class and the answer; exact over all processes."""

    def __init__(self, task: "Segment", loader: Loader[MaskBatch]) -> None:
        self.task, self.loader = task, loader
        self.classes: tuple[str, ...] = tuple(task.describe(task.data.describe())["classes"])
        self._meter: MaskMeter | None = None
        self._worst = WorstMasks()

    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Mean intersection over union, and the share of right pixels."""
        assert isinstance(model, Model)
        site = self.task.site
        segmenter = Segmenter(
            model,
            self.task.recipe.evaluation.build(),
            normalize=self.task.normalize,
            device=site.device,
            dtype=site.dtype,
        )
        meter, worst = MaskMeter(len(self.classes)), WorstMasks()
        batches = site.reporter.evaluating(self.loader.epoch(0), len(self.loader))
        for answers, batch in segment(segmenter, batches, num_lanes=site.num_lanes):
            assert isinstance(batch, MaskBatch)
            for place, answer in enumerate(answers):
                height, width = answer.shape
                truth = apply_table(batch.masks[place, :height, :width], self.task.table)
                figure = describe_counts(meter.update(answer, truth))["mean_iou"]
                if worst.is_worse(figure):
                    pixels = batch.images[place, :, :height, :width].numpy()
                    number = int(batch.indices[place])
                    worst.join([WorstMask(figure, number, pixels.copy(), truth.numpy(), answer.numpy())])
        site.world.sum(meter.counts)
        self._meter, self._worst = meter, WorstMasks()
        for part in site.world.gather(worst.found):
            self._worst.join(part)
        yield from meter.results()

    def write(self, folder: Path) -> None:
        """Leave the counts, the figures of each class, and the worst masks beside the truth."""
        if self._meter is None:
            return
        colours = self.task.describe(self.task.data.describe())["colours"]
        counts = {"classes": list(self.classes), "colours": colours, "pixels": self._meter.counts.tolist()}
        write_json(folder / COUNTS_FILE, counts)
        rows = self._meter.rows(self.classes)
        write_text(folder / CLASSES_FILE, csv_text(rows, columns=COLUMNS), errors="backslashreplace")
        compared = [
            Compared(one.pixels, one.truth, one.answer, f"{self._name(one.number)}: {one.mean_iou:.1f} %")
            for one in self._worst.found
        ]
        if compared:
            write_comparison(folder / WORST_FILE, compared, colours=colours)

    def _name(self, number: int) -> str:
        return self.task.data.val.locate(number).replace("\\", "/").rpartition("/")[2]
