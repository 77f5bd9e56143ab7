"""Distillation: a classifier that learns from labels and from what a teacher answers."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.data.contract import ImageBatch
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.task import Classify, make_supervised
from vitrail.tasks.contract import Objective, StepContext
from vitrail.tasks.distill.distillation import Distillation
from vitrail.tasks.distill.settings import DistillRecipe
from vitrail.tasks.distill.teacher_cache import TeacherCache
from vitrail.tasks.distill.teachers import Teacher, load_teacher
from vitrail.tasks.images.image_task import require_classes
from vitrail.tasks.images.initial_weights import make_backbone
from vitrail.tasks.images.labelled_data import LabelledData
from vitrail.tasks.teaching.answer_store import default_folder
from vitrail.tasks.teaching.view_fingerprints import fingerprint_augmentation, fingerprint_data

_LOGGER = logging.getLogger(__name__)


class Distill(Classify):
    """A classifier with a teacher."""

    Recipe: ClassVar[type[Recipe]] = DistillRecipe
    recipe: DistillRecipe
    teacher: Teacher | None  # None in a plan whose answers are to be cached: they come from a disk
    cache: TeacherCache | None
    student: Distillation  # how answers are made of what the teacher says

    @property
    def fixed_views(self) -> int | None:
        """The number of views of an image where answers are kept: as many as there are answers to it."""
        return self.recipe.teacher.num_views

    def check(self) -> None:
        """A student needs a teacher."""
        if self.recipe.teacher.model is None:
            raise ValueError("no teacher given: add teacher=RUN, or task=classify to learn from labels alone")

    def open(self) -> LabelledData:
        """Images of one label each."""
        self.check()
        data = super().open()
        if data.labels.is_multiple:
            raise ValueError(
                f"images of {data.train.name} have several labels: a teacher that names one can't be learnt from"
            )
        return data

    def make_model(self, description: Mapping[str, Any]) -> Model:
        """The classifier, with a head of the teacher's own where that is asked for."""
        further = {"distilled": True} if self.recipe.teacher.kind == "token" else {}
        return make_backbone(self.recipe, num_classes=len(require_classes(description)), **further)

    def attach(self, model: Model) -> None:
        """Bring the teacher and what it has answered before."""
        super().attach(model)
        settings, is_plan = self.recipe.teacher, self.site.folder is None
        self.teacher = self.cache = None
        if settings.num_views is None or not is_plan:
            self.teacher = load_teacher(
                str(settings.model),
                classes=self.data.labels.classes,
                image_size=settings.image_size,
                mapping=settings.classes,
                device=self.site.device,
            )
            self.cache = None if settings.num_views is None else self._open_cache(self.teacher, settings.num_views)
        if self.cache is not None and self.site.world.is_main:
            _LOGGER.info("%s", self.cache.describe())
        self.student = Distillation(
            supervised=make_supervised(self.recipe.objective, self.data.labels),
            settings=settings,
            teacher=self.teacher if settings.num_views is None else None,
            normalize=self.normalize,
        )

    def _open_cache(self, teacher: Teacher, num_views: int) -> TeacherCache:
        """The answers that the teacher gave before to the same views of the same images."""
        settings = self.recipe.teacher
        augmentation = self.recipe.augmentation.build(image_size=self.recipe.image_size)
        folder = Path(settings.cache_folder).expanduser() if settings.cache_folder else default_folder()
        return TeacherCache.open(
            folder,
            teacher=teacher.fingerprint,
            data=fingerprint_data(self.data.train),
            augmentation=fingerprint_augmentation(augmentation),
            num_samples=self.data.num_train,
            num_views=num_views,
            num_classes=self.data.num_classes,
            top=settings.cache_top,
        )

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> Objective[ImageBatch]:
        """The loss of a student."""
        return self.student

    def prepare(self, batch: ImageBatch, at: StepContext) -> ImageBatch:
        """The batch with the teacher's answers to images that are not mixed yet; answers are mixed as labels are."""
        if self.recipe.teacher.num_views is None:
            return super().prepare(batch, at)
        pixels = batch.images.to(self.site.device, non_blocking=True)
        return super().prepare(batch._replace(images=pixels, answers=self._look_up(batch, pixels)), at)

    def _look_up(self, batch: ImageBatch, pixels: Tensor) -> Tensor:
        """What the teacher says; it is asked about those views only that it has not seen."""
        if batch.views is None or self.cache is None or self.teacher is None:  # an example, of which nobody is asked
            num_classes = self.data.num_classes
            return torch.full((len(pixels), num_classes), 1.0 / num_classes, device=self.site.device)
        logits = self.cache.answer(
            batch.indices, batch.views, pixels=lambda: pixels.float() / 255.0, teacher=self.teacher
        )
        return self.student.soften(logits.to(self.site.device))
