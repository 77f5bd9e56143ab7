"""Detection: objects are found by boxes and, with Mask R-CNN, by masks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from vitrail.data.contract import Dataset
from vitrail.data.dense.contract import DetectionData, DetectionSet, ObjectBatch, Objects
from vitrail.data.dense.opening import open_detection
from vitrail.data.dense.samples import ObjectSamples
from vitrail.data.loader import Loader
from vitrail.data.quarantine import Problem, Quarantine
from vitrail.data.sampler import Sampler
from vitrail.heads.mask_rcnn import Detector, DetectorSettings
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import (
    Answer,
    Evaluation,
    EvaluationRequest,
    Evaluator,
    Loaders,
    Measure,
    Objective,
    RunReader,
    StepContext,
)
from vitrail.tasks.detect.asking import prepare_batch
from vitrail.tasks.detect.coco_measures import import_evaluator
from vitrail.tasks.detect.detect_answers import answer_with_objects, keep_objects
from vitrail.tasks.detect.detect_report import detection_sections
from vitrail.tasks.detect.evaluator import DetectionEvaluator
from vitrail.tasks.detect.measures import LOSSES, MEASURES
from vitrail.tasks.detect.objective import DetectionLoss
from vitrail.tasks.detect.settings import DetectRecipe
from vitrail.tasks.detect.trained_detection import evaluate_detector
from vitrail.tasks.images.image_task import VisualTask, count_workers, require_classes
from vitrail.tasks.images.initial_weights import make_backbone

_VAL_BATCH = 4  # whole images that a process evaluates at a time
_MULTIPLE = 32  # of the sides of a batch
_EXAMPLE_OBJECTS = 4  # in each image of noise
_ASPECT = 4 / 3  # of an image of noise, where the recipe allows it


class Detect(VisualTask[ObjectBatch]):
    """A detector, measured by COCO's average precision on whole images."""

    Recipe: ClassVar[type[Recipe]] = DetectRecipe
    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    signals: ClassVar[tuple[Measure, ...]] = LOSSES
    recipe: DetectRecipe
    data: DetectionData  # type: ignore[assignment]  # objects have one kind of labels: there are no levels

    @property
    def has_masks(self) -> bool:
        """Whether objects are found by masks too."""
        return self.recipe.detector.head == "mask_rcnn"

    def check(self) -> None:
        """Refuse a divided model: processes have images of different sizes, and would wait for each other."""
        if self.recipe.run.sharding == "full":
            raise ValueError("a detector can't be divided over processes: leave sharding=full out")

    def open(self) -> DetectionData:
        """Images with objects, of which Mask R-CNN needs the masks."""
        self.check()
        count_workers(self.recipe, self.site.device)  # more than can be are refused before anything is read
        import_evaluator()
        self.data = open_detection(self.recipe.data)
        if self.has_masks and not self.data.has_masks:
            raise ValueError(
                f"objects of {self.data.train.name} have boxes and no masks: set detector.head=faster_rcnn"
            )
        if self.data.is_held_out and self.site.stage == 0:
            share = self.recipe.data.val_share
            self.site.reporter.say(f"there is no val: {share:.0%} of train is set aside for it (data.val_share)")
        return self.data

    def make_model(self, description: Mapping[str, Any]) -> Detector:
        """The recipe's trunk with a detector of the data's classes."""
        trunk = make_backbone(self.recipe, num_classes=0)
        view = {"short_side": self.recipe.view.short_side, "max_side": self.recipe.view.max_side}
        settings = {**self.recipe.detector.model_dump(), **view}
        return Detector(trunk, DetectorSettings(num_classes=len(require_classes(description)), **settings))

    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders:
        """Augmented images of train, and whole ones of val."""
        recipe, ranks = self.recipe, self.site.world.ranks
        quarantine = self.make_quarantine(listing)
        train = Loader(
            self.data.train,
            make=ObjectSamples(recipe.augmentation.build()),
            sampler=Sampler(
                len(self.data.train),
                batch_size=recipe.batch_size,
                seed=self.site.seed,
                ranks=ranks,
                num_micro_batches=num_parts,
            ),
            num_workers=self.count_readers(),
            quarantine=quarantine,
            pin_memory=self.site.device.type == "cuda",
        )
        return Loaders(train, self.load_whole(self.data.val, quarantine=quarantine))

    def load_whole(self, dataset: DetectionSet, *, quarantine: Quarantine) -> Loader[ObjectBatch]:
        """Whole images, each once, in parts for the processes."""
        return Loader(
            dataset,
            make=ObjectSamples(self.recipe.view.build()),
            sampler=Sampler(len(dataset), batch_size=self.val_batch, is_training=False, ranks=self.site.world.ranks),
            num_workers=count_workers(self.recipe, self.site.device),
            quarantine=quarantine,
            pin_memory=self.site.device.type == "cuda",
        )

    @property
    def val_batch(self) -> int:
        """Images of val that are evaluated at a time, over all processes."""
        recipe, ranks = self.recipe, self.site.world.ranks
        return recipe.evaluation.batch_size or min(recipe.batch_size, _VAL_BATCH * ranks.num_ranks)

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
    def keep(cls, answers: Iterator[Answer], *, trained: Trained, data: Dataset, folder: Path) -> Iterator[Answer]:
        """Pictures of the objects, and what was found as COCO JSON and YOLO text."""
        return keep_objects(answers, trained=trained, data=data, folder=folder)

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """The worst pictures beside the truth, and the average precision of each class."""
        return detection_sections(run)
