"""Detection: objects are found by boxes and, with Mask R-CNN, by masks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL.Image import Image
from torch import nn

from vitrail.data.contract import Dataset
from vitrail.data.dense.contract import DetectionData, ObjectBatch, Objects
from vitrail.data.dense.opening import open_detection
from vitrail.data.dense.samples import ObjectSamples
from vitrail.data.quarantine import Problem
from vitrail.heads.mask_rcnn import Detector, DetectorSettings
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import EvaluationRequest, Loaders, Objective, RunReader, StepContext
from vitrail.tasks.detect.asking import prepare_batch
from vitrail.tasks.detect.coco_measures import import_evaluator
from vitrail.tasks.detect.detect_answers import answer_with_objects, draw_found, keep_objects
from vitrail.tasks.detect.detect_report import detection_sections
from vitrail.tasks.detect.evaluator import DetectionEvaluator
from vitrail.tasks.detect.measures import LOSSES, MEASURES
from vitrail.tasks.detect.objective import DetectionLoss
from vitrail.tasks.detect.settings import DetectRecipe
from vitrail.tasks.detect.trained_detection import evaluate_detector
from vitrail.tasks.images.dense_task import DenseTask
from vitrail.tasks.images.image_task import require_classes
from vitrail.tasks.images.initial_weights import make_backbone
from vitrail.tasks.results import Answer, Evaluation, Evaluator, Measure

_MULTIPLE = 32  # of the sides of a batch
_EXAMPLE_OBJECTS = 4  # in each image of noise
_ASPECT = 4 / 3  # of an image of noise, where the recipe allows it


class Detect(DenseTask[ObjectBatch, DetectionData]):
    """A detector, measured by COCO's average precision on whole images."""

    Recipe: ClassVar[type[Recipe]] = DetectRecipe
    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    signals: ClassVar[tuple[Measure, ...]] = LOSSES
    answering: ClassVar[str | None] = "detect"
    recipe: DetectRecipe
    whole_batch = 4

    @property
    def has_masks(self) -> bool:
        """Whether objects are found by masks too."""
        return self.recipe.detector.head == "mask_rcnn"

    def check(self) -> None:
        """Refuse a divided model: processes have images of different sizes, and would wait for each other."""
        if self.recipe.run.sharding == "full":
            raise ValueError("a detector can't be divided over processes: leave sharding=full out")

    def open_marked(self) -> DetectionData:
        """Images with objects, of which Mask R-CNN needs the masks."""
        import_evaluator()
        data = open_detection(self.recipe.data)
        if self.has_masks and not data.has_masks:
            raise ValueError(f"objects of {data.train.name} have boxes and no masks: set detector.head=faster_rcnn")
        return data

    def make_model(self, description: Mapping[str, Any]) -> Detector:
        """The recipe's trunk with a detector of the data's classes."""
        trunk = make_backbone(self.recipe, num_classes=0)
        view = {"short_side": self.recipe.view.short_side, "max_side": self.recipe.view.max_side}
        settings = {**self.recipe.detector.model_dump(), **view}
        return Detector(trunk, DetectorSettings(num_classes=len(require_classes(description)), **settings))

    def make_samples(self) -> ObjectSamples:
        """Augmented images with the objects that are left in them."""
        return ObjectSamples(self.recipe.augmentation.build())

    def make_whole(self) -> ObjectSamples:
        """Whole images, resized as they are evaluated."""
        return ObjectSamples(self.recipe.view.build())

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> DetectionLoss:
        """The losses of proposals, boxes and masks."""
        return DetectionLoss()

    def prepare(self, batch: ObjectBatch, at: StepContext) -> ObjectBatch:
        """Images normalised, with zeros beyond them."""
        return prepare_batch(batch, normalize=self.normalize, device=self.site.device)

    def example(self, count: int) -> ObjectBatch:
        """A batch of noise of the largest size, with objects at random."""
        settings = self.recipe.augmentation
        short = min(max(settings.short_sides), settings.max_side)
        height, width = (
            -(-side // _MULTIPLE) * _MULTIPLE for side in (short, min(settings.max_side, round(short * _ASPECT)))
        )
        images = torch.randint(256, (count, 3, height, width), dtype=torch.uint8)
        sizes = torch.tensor([[height, width]] * count)
        objects = tuple(self._example_objects(height, width) for _ in range(count))
        images = images.contiguous(memory_format=torch.channels_last)
        return ObjectBatch(images, sizes, objects, torch.arange(count), sizes)

    def _example_objects(self, height: int, width: int) -> Objects:
        corners = torch.rand(_EXAMPLE_OBJECTS, 2) * torch.tensor([width, height]) / 2
        boxes = torch.cat([corners, corners + torch.tensor([width, height]) / 3], dim=1)
        labels = torch.randint(len(self.data.classes), (_EXAMPLE_OBJECTS,))
        masks = torch.ones(_EXAMPLE_OBJECTS, height, width, dtype=torch.uint8) if self.has_masks else None
        areas = torch.full((_EXAMPLE_OBJECTS,), height * width / 9)
        return Objects(boxes, labels, masks, torch.zeros(_EXAMPLE_OBJECTS, dtype=torch.bool), areas)

    def respond(self, model: nn.Module, batch: ObjectBatch) -> Any:
        """What the detector finds."""
        return model(batch.images, batch.sizes)

    def make_evaluators(self, objective: Objective[ObjectBatch], loaders: Loaders) -> Sequence[Evaluator]:
        """Average precision on val."""
        return [DetectionEvaluator(self, loaders.val)]

    @classmethod
    def evaluate(cls, request: EvaluationRequest) -> Evaluation:
        """Average precision on data whose classes the model knows."""
        return evaluate_detector(request)

    @classmethod
    def answer(
        cls, trained: Trained, data: Dataset, *, passes: Passes, top: int, note_unread: Callable[[Problem], object]
    ) -> Iterator[Answer]:
        """The objects of each image."""
        return answer_with_objects(trained, data, passes=passes, top=top, note_unread=note_unread)

    @classmethod
    def draw_answer(cls, answer: Answer, *, trained: Trained, pixels: np.ndarray) -> dict[str, Image]:
        """The objects that the detector is sure of, over the image."""
        return {"overlay": draw_found(answer, trained=trained, pixels=pixels)}

    @classmethod
    def keep(cls, answers: Iterator[Answer], *, trained: Trained, data: Dataset, folder: Path) -> Iterator[Answer]:
        """Pictures of the objects, and what was found as COCO JSON and YOLO text."""
        return keep_objects(answers, trained=trained, data=data, folder=folder)

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """The worst pictures beside the truth, and the average precision of each class."""
        return detection_sections(run)
