"""What tasks share whose models answer with classes: how they are measured, what they say of a file, and the report."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.quarantine import Problem
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.pages.frame import PageSection
from vitrail.tasks.classify.class_answers import answer_with_classes, name_probable
from vitrail.tasks.classify.measures import MEASURES
from vitrail.tasks.classify.report.sections import answer_remarks, answer_sections
from vitrail.tasks.classify.trained_evaluation import evaluate_classifier
from vitrail.tasks.contract import EvaluationRequest, RunReader
from vitrail.tasks.images.image_task import ImageTask
from vitrail.tasks.images.run_data import open_run_data
from vitrail.tasks.images.training_batch import training_sections
from vitrail.tasks.results import Answer, Evaluation, Measure


class ClassTask(ImageTask):
    """A task on images that is measured by the classes its model answers with."""

    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    answering: ClassVar[str | None] = "predict"
    answers_by_logits: ClassVar[bool] = True

    @classmethod
    def evaluate(cls, request: EvaluationRequest) -> Evaluation:
        """Accuracy on labels that the model knows."""
        return evaluate_classifier(request)

    @classmethod
    def answer(
        cls, trained: Trained, data: Dataset, *, passes: Passes, top: int, note_unread: Callable[[Problem], object]
    ) -> Iterator[Answer]:
        """The most probable classes of each image."""
        return answer_with_classes(trained, data, passes=passes, top=top, note_unread=note_unread)

    @classmethod
    def read_logits(cls, trained: Trained, logits: Tensor, *, places: Sequence[str], top: int) -> list[Answer]:
        """The most probable classes of each image."""
        return [*name_probable(trained, logits, places=places, top=top)]

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """Mistakes, calibration and scores by class, and a batch as training saw it."""
        opened = open_run_data(run)
        yield from answer_sections(run, opened)
        yield from training_sections(cls, run, opened)

    @classmethod
    def remarks(cls, run: RunReader) -> Iterator[str]:
        """What was most often mistaken."""
        return answer_remarks(run)
