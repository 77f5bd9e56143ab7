"""Segmentation: a class for every pixel, learnt on crops and measured on whole images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from vitrail.data.checks import as_pair
from vitrail.data.contract import Dataset
from vitrail.data.dense.class_table import apply_table, keep_classes, table_of
from vitrail.data.dense.contract import MaskBatch, SegmentationData
from vitrail.data.dense.dense_sources import MaskSubset
from vitrail.data.dense.opening import open_segmentation
from vitrail.data.dense.samples import MaskSamples
from vitrail.data.quarantine import Problem
from vitrail.evaluation.segmenting import choose_window
from vitrail.heads.segment import SegmentModel
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.models.contract import Model
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import EvaluationRequest, Loaders, Objective, RunReader, StepContext
from vitrail.tasks.images.dense_task import DenseTask
from vitrail.tasks.images.image_task import require_classes
from vitrail.tasks.images.initial_weights import make_backbone
from vitrail.tasks.results import Answer, Evaluation, Evaluator, Measure
from vitrail.tasks.segment.class_weights import balance_classes, count_pixels, has_labelled_pixels
from vitrail.tasks.segment.evaluator import SegmentEvaluator
from vitrail.tasks.segment.looking_notes import note_looking
from vitrail.tasks.segment.measures import LOSSES, MEASURES
from vitrail.tasks.segment.objective import PixelCrossEntropy
from vitrail.tasks.segment.segment_answers import answer_with_masks, draw_masks, keep_masks
from vitrail.tasks.segment.segment_report import segmentation_sections
from vitrail.tasks.segment.settings import SegmentRecipe
from vitrail.tasks.segment.trained_segmentation import evaluate_segmentation


class Segment(DenseTask[MaskBatch, SegmentationData]):
    """A segmentation model, measured by the mean intersection over union on whole images."""

    Recipe: ClassVar[type[Recipe]] = SegmentRecipe
    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    signals: ClassVar[tuple[Measure, ...]] = LOSSES
    answering: ClassVar[str | None] = "segment"
    recipe: SegmentRecipe
    whole_batch = 8
    table: Tensor  # from values of the data's masks to classes that are learnt

    def check(self) -> None:
        """Refuse what a head on a trunk can't have."""
        if self.recipe.run.sharding == "full":
            raise ValueError("segmentation is not learnt with sharding=full: leave it out")
        if self.recipe.model.head_start in ("probe", "zero"):
            raise ValueError("head_start is for classifiers of images: leave it out")

    def open_marked(self) -> SegmentationData:
        """Images with masks of at least two classes that are not ignored."""
        data, ignore = open_segmentation(self.recipe.data), self.recipe.segment.ignore
        kept = [data.classes[place] for place in keep_classes(data.classes, ignore)]
        self.table = table_of(data.classes, known=kept, ignore=ignore)
        unknown = "255, void or of segment.ignore" if ignore else "255 or void"
        if not has_labelled_pixels(data.train, table=self.table):
            raise ValueError(
                f"no pixel of the {len(data.train):,} training masks of {data.train.name} is of a class: all are "
                f"{unknown}, and there is nothing to learn; look at the masks, or at the table of classes"
            )
        if has_labelled_pixels(data.val, table=self.table):
            return data
        told = f"no pixel of the {len(data.val):,} masks of val is of a class (all are {unknown})"
        if self.recipe.regularisation.early_stop is not None:
            raise ValueError(f"{told}, and regularisation.early_stop needs evaluations: mark val, or drop it")
        self.site.reporter.say(f"warning: {told}: nothing is measured")
        return replace(data, val=MaskSubset(data.val, np.zeros(0, dtype=np.int64)))

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json: the classes that are learnt, their colours, those ignored, how to look."""
        ignore = [name for name in self.recipe.segment.ignore if name in data["classes"]]
        found = super().describe(data) | {"ignore": list(self.recipe.segment.ignore)}
        found |= note_looking(self.recipe.evaluation)
        if ignore:
            kept = keep_classes(data["classes"], ignore)
            found |= {key: [data[key][place] for place in kept] for key in ("classes", "colours")}
        return found

    def make_model(self, description: Mapping[str, Any]) -> SegmentModel:
        """The recipe's trunk with a head for the data's classes."""
        trunk = make_backbone(self.recipe, num_classes=0)
        blocks, count = self.recipe.segment.blocks or (), trunk.num_levels
        beyond = next((block for block in blocks if not -count <= block < count), None)
        if count and beyond is not None:
            raise ValueError(
                f"segment.blocks names block {beyond}, but {trunk.name} has {count}: from 0 to {count - 1}"
            )
        return SegmentModel(trunk, self.recipe.segment.build(num_classes=len(require_classes(description))))

    def make_samples(self) -> MaskSamples:
        """Augmented crops."""
        return MaskSamples(self.recipe.augmentation.build(image_size=self.recipe.image_size))

    def make_whole(self) -> MaskSamples:
        """Whole images as they are."""
        return MaskSamples()

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> PixelCrossEntropy:
        """The loss of every pixel."""
        settings = self.recipe.segment
        if settings.balance == 0.0 or is_trial:
            return PixelCrossEntropy(auxiliary=settings.auxiliary)
        num_classes = len(keep_classes(self.data.classes, settings.ignore))
        counts = count_pixels(self.data.train, table=self.table, num_classes=num_classes)
        weights = balance_classes(counts, power=settings.balance).to(self.site.device)
        return PixelCrossEntropy(auxiliary=settings.auxiliary, weights=weights)

    def prepare(self, batch: MaskBatch, at: StepContext) -> MaskBatch:
        """Images normalised, masks by the classes that are learnt."""
        batch = batch.to(self.site.device, non_blocking=True)
        return batch._replace(images=self.normalize(batch.images), masks=apply_table(batch.masks, self.table))

    def example(self, count: int) -> MaskBatch:
        """A batch of noise, with classes drawn at random."""
        size = as_pair(self.recipe.image_size)
        images = torch.randint(256, (count, 3, *size), dtype=torch.uint8)
        masks = torch.randint(len(self.data.classes), (count, *size), dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        return MaskBatch(images, masks, torch.arange(count), torch.tensor([size] * count))

    def respond(self, model: nn.Module, batch: MaskBatch) -> Any:
        """Logits on the head's grid."""
        return model(batch.images)

    def make_evaluators(self, objective: Objective[MaskBatch], loaders: Loaders) -> Sequence[Evaluator]:
        """Intersection over union on val."""
        return [SegmentEvaluator(self, loaders.val)]

    def notes(self, loaders: Loaders) -> Iterator[Mapping[str, Any]]:
        """No further lines of metrics."""
        return iter(())

    def attach(self, model: Model) -> None:
        """Get ready to prepare batches for a segmentation model; a window that it can't look through is refused."""
        assert isinstance(model, SegmentModel), "make_model gives one"
        super().attach(model)
        try:
            choose_window(model, self.recipe.evaluation.build().window)
        except ValueError as error:
            raise ValueError(f"evaluation.window does not fit: {error}") from None

    @classmethod
    def evaluate(cls, request: EvaluationRequest) -> Evaluation:
        """Intersection over union on data whose classes the model knows."""
        return evaluate_segmentation(request)

    @classmethod
    def answer(
        cls, trained: Trained, data: Dataset, *, passes: Passes, top: int, note_unread: Callable[[Problem], object]
    ) -> Iterator[Answer]:
        """The mask of each image, and how much of it each class fills."""
        return answer_with_masks(trained, data, passes=passes, top=top, note_unread=note_unread)

    @classmethod
    def draw_answer(cls, answer: Answer, *, trained: Trained, pixels: np.ndarray) -> dict[str, Image]:
        """The mask with a palette, and the overlay."""
        return draw_masks(answer, trained=trained, pixels=pixels)

    @classmethod
    def keep(cls, answers: Iterator[Answer], *, trained: Trained, data: Dataset, folder: Path) -> Iterator[Answer]:
        """Masks as PNG with a palette, and overlays."""
        return keep_masks(answers, trained=trained, data=data, folder=folder)

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """The worst pictures beside the truth, the classes, and what is taken for what."""
        return segmentation_sections(run)
