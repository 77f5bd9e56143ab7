"""How well objects of val are found, by COCO's numbers, and what the report shows of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image
from torch import nn

from vitrail.data.decode import open_image
from vitrail.data.dense.contract import DetectionSet, ObjectBatch
from vitrail.data.dense.palette import make_colours
from vitrail.data.loader import Loader
from vitrail.storage import write_json
from vitrail.tasks.detect.asking import ImageAnswer, ask
from vitrail.tasks.detect.coco_measures import CocoScores, ImageTruth, join_truth, measures_in, score
from vitrail.tasks.detect.drawing import draw_objects, draw_pairs, write_picture
from vitrail.tasks.detect.found_objects import FoundObject, count_confusions, count_errors, objects_of, read_truth
from vitrail.tasks.results import Evaluator

if TYPE_CHECKING:
    from vitrail.tasks.detect.task import Detect

WORST_FILE, CLASSES_FILE = "worst_detections.jpg", "average_precision.json"
CONFUSION_FILE = "detection_confusion.json"
_NUM_WORST, _LONGEST = 8, 440  # pictures, and pixels of their longer side
SURE = 0.5  # probability from which on an answer is drawn and counts as a mistake


# What a process found in its images, and what is known of them by their places.
Part = tuple[list[ImageAnswer], dict[int, ImageTruth]]


class _Judged(NamedTuple):
    answer: ImageAnswer
    known: tuple[FoundObject, ...]


class DetectionEvaluator(Evaluator):
    """Average precision of boxes and masks over the images that could be read.

    Every process answers about its own images; the answers of all are put together, so that the numbers are those of
    one process.
    """

    def __init__(self, task: "Detect", loader: Loader[ObjectBatch]) -> None:
        self.task, self.loader = task, loader
        self.dataset: DetectionSet = task.data.val
        self._truths: dict[int, ImageTruth] = {}  # by the image's place: read once
        self._scores: CocoScores | None = None
        self._worst: list[_Judged] = []
        self._confusions: np.ndarray | None = None  # int64 [classes + 1, classes + 1]

    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """COCO's numbers in percent."""
        site, data = self.task.site, self.task.data
        batches = site.reporter.evaluating(self.loader.epoch(0), len(self.loader))
        answers = list(
            ask(
                model,
                batches,
                normalize=self.task.normalize,
                device=site.device,
                dtype=site.dtype,
                num_lanes=site.num_lanes,
            )
        )
        for answer in answers:
            if answer.place not in self._truths:
                truth = read_truth(self.dataset, answer.place, category_ids=data.category_ids)
                self._truths[answer.place] = truth
        known = {answer.place: self._truths[answer.place] for answer in answers}
        parts = site.world.gather((answers, known))
        scores = self._judge(parts) if site.world.is_main else None
        self._scores = site.world.share(scores)
        assert self._scores is not None
        yield from measures_in(self._scores.numbers)

    def _judge(self, parts: Sequence[Part]) -> CocoScores:
        data = self.task.data
        answers, truths = merge_parts(parts)
        results = [
            one.result(image_id=self.dataset.image_id(answer.place), category_ids=data.category_ids)
            for answer in answers
            for one in answer.objects
        ]
        truth = join_truth(
            (truths[answer.place] for answer in answers), classes=data.classes, category_ids=data.category_ids
        )
        judged = [_Judged(one, objects_of(truths[one.place], category_ids=data.category_ids)) for one in answers]
        self._worst = _find_worst(judged)
        self._confusions = np.zeros((len(data.classes) + 1, len(data.classes) + 1), dtype=np.int64)
        for one in judged:
            self._confusions += count_confusions(
                one.answer.objects, one.known, num_classes=len(data.classes), least=SURE
            )
        return score(truth, results, has_masks=self.task.has_masks)

    def write(self, folder: Path) -> None:
        """Leave the average precision of each class, what was taken for what, and the worst pictures beside truth."""
        if self._scores is None:
            return
        write_json(folder / CLASSES_FILE, {"classes": list(self.task.data.classes), **self._scores.by_class})
        if self._confusions is not None:
            content = {"classes": list(self.task.data.classes), "counts": self._confusions.tolist()}
            write_json(folder / CONFUSION_FILE, content)
        pairs = [self._draw(one.answer, one.known) for one in self._worst]
        if pairs:
            write_picture(folder / WORST_FILE, draw_pairs(pairs))

    def _draw(self, answer: ImageAnswer, known: Sequence[FoundObject]) -> tuple[Image.Image, Image.Image, str]:
        image = Image.fromarray(open_image(self.dataset.read(answer.place)).pixels().permute(1, 2, 0).numpy())
        sure = tuple(one for one in answer.objects if one.score >= SURE)
        classes = self.task.data.classes
        colours = make_colours(len(classes))
        truth, said = (
            draw_objects(image, shown, classes=classes, colours=colours, longest=_LONGEST) for shown in (known, sure)
        )
        name = self.dataset.locate(answer.place).replace("\\", "/").rpartition("/")[2]
        return truth, said, name


def merge_parts(parts: Sequence[Part]) -> Part:
    """The answers of all processes in the order of the data, which decides between equal scores, and what is known."""
    answers = sorted((answer for found, _ in parts for answer in found), key=lambda answer: answer.place)
    return answers, {index: truth for _, known in parts for index, truth in known.items()}


def _find_worst(judged: Sequence[_Judged]) -> list[_Judged]:
    """Images with the largest share of objects missed and answers that are none."""
    errors = {one.answer.place: count_errors(one.answer.objects, one.known, least=SURE) for one in judged}
    return sorted(judged, key=lambda one: (-errors[one.answer.place], one.answer.place))[:_NUM_WORST]
