"""Features of a teacher, learnt without labels by any backbone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.data.contract import Dataset, ImageBatch
from vitrail.data.samples import Images
from vitrail.heads.features import FeatureHeadSettings, FeatureModel
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Loaders, StepContext, TaskData
from vitrail.tasks.features.evaluator import SimilarityEvaluator
from vitrail.tasks.features.feature_cache import FeatureCache, check_room
from vitrail.tasks.features.objective import FeatureDistillation, whiten
from vitrail.tasks.features.settings import FeaturesRecipe
from vitrail.tasks.features.statistics import MOST_IMAGES, find_statistics
from vitrail.tasks.results import Evaluator, Measure
from vitrail.tasks.teaching.answer_store import default_folder
from vitrail.tasks.teaching.feature_teacher import FeatureTeacher, load_feature_teacher
from vitrail.tasks.teaching.teacher_sources import hash_parts
from vitrail.tasks.teaching.view_fingerprints import fingerprint_augmentation, fingerprint_data
from vitrail.tasks.unlabelled.collapse import Nearness, Sign, constant_features
from vitrail.tasks.unlabelled.measures import MEASURES, SIGNALS
from vitrail.tasks.unlabelled.task import UnlabelledTask

_FEWEST_WATCHED = 8  # images of a step in a process, of which fewer always look alike
_LEVELS = "Training loss of each level"
_REMEDIES = ("lower lr", "set optimizer.clip=1")


class FeatureTask(UnlabelledTask[ImageBatch]):
    """A backbone that learns to say of images what a teacher says."""

    Recipe: ClassVar[type[Recipe]] = FeaturesRecipe
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("similarity", "similarity to the teacher", unit="", digits=3, chart="Similarity to the teacher"),
        *MEASURES,
    )
    signals: ClassVar[tuple[Measure, ...]] = (
        Measure("summary", "summary", unit="", chart=_LEVELS),
        Measure("patches", "patches", unit="", chart=_LEVELS),
        Measure("similarity", "", unit="", chart="Similarity to the teacher in a batch"),
        Measure("effective_rank", "", unit="", chart="Effective rank in a batch, by the participation ratio"),
        *SIGNALS,
    )
    measures_head: ClassVar[bool] = True
    recipe: FeaturesRecipe
    cache: FeatureCache | None = None  # of training views, where they are fixed
    _teacher: FeatureTeacher | None = None

    @property
    def reads_patches(self) -> bool:
        """Without a summary to learn, patches are all that is taught."""
        return self.recipe.features.summary == 0

    @property
    def fixed_views(self) -> int | None:
        """The number of views of an image where the teacher's features are kept."""
        return self.recipe.teacher.num_views

    @property
    def num_passes(self) -> int:
        """How many training images the teacher is asked about before the first step."""
        return min(MOST_IMAGES, self.data.num_train) if self.recipe.features.standardize == "data" else 0

    def count_measured(self, data: TaskData) -> int:
        """How many images an evaluation looks at; those of val once more, beside the teacher's features of them."""
        return super().count_measured(data) + min(data.num_val, self.recipe.watch.val_images)

    @property
    def teacher(self) -> FeatureTeacher:
        """The teacher, which is loaded once it is asked for."""
        if self._teacher is None:
            settings = self.recipe.teacher
            self._teacher = load_feature_teacher(
                str(settings.model),
                levels=self.recipe.features.levels,
                student_size=self.recipe.image_size,
                image_size=settings.image_size,
                device=self.site.device,
            )
        return self._teacher

    def check(self) -> None:
        """A student needs a teacher, and something to learn from it."""
        super().check()
        if self.recipe.teacher.model is None:
            raise ValueError("no teacher given: add teacher=NAME of a model with published weights, or teacher=RUN")
        if not self.recipe.features.levels:
            raise ValueError("features.summary and features.patches are 0: there is nothing to learn")

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json: with the sizes of the teacher's features, which projectors are made for."""
        sizes = data.get("teacher")
        if sizes is None:
            teacher = self.teacher
            sizes = {"summary": teacher.summary, "patches": teacher.patches, "grid": list(teacher.grid)}
        return super().describe(data) | {"teacher": sizes}

    def make_model(self, description: Mapping[str, Any]) -> FeatureModel:
        """The recipe's backbone without classifier, and its projectors."""
        settings, sizes = self.recipe.features, description["teacher"]
        is_resized = settings.patches > 0.0 and settings.grid == "teacher"
        return FeatureModel(
            self.make_trunk(),
            FeatureHeadSettings(
                summary=sizes["summary"],
                patches=sizes["patches"],
                grid=tuple(sizes["grid"]) if is_resized else None,
                projector=settings.projector,
                hidden_dim=settings.hidden_dim,
            ),
        )

    def attach(self, model: Model) -> None:
        """Bring the teacher to the grid of the student, with what it has said before."""
        super().attach(model)
        if not isinstance(model, FeatureModel):  # the trunk of a run that has ended
            return
        self.teacher.on_grid(model.shape.grid)
        if self.fixed_views is None:
            return
        augmentation = self.recipe.augmentation.build(image_size=self.recipe.image_size)
        self.cache = self._open_cache(
            self.data.train, views=fingerprint_augmentation(augmentation), num_views=self.fixed_views
        )
        if self.cache is not None and self.site.world.is_main:
            self.site.reporter.say(self.cache.describe())

    def start_head(self) -> None:
        """Look at the teacher's features, to standardise them."""
        assert isinstance(self.model, FeatureModel), "make_model gives one"
        if self.recipe.features.standardize == "data":
            for level, found in find_statistics(self).items():
                self.model.set_statistics(level, mean=found.mean, deviation=found.deviation)

    def make_samples(self) -> Images:
        """An augmented view of each image; where views are fixed, it says which."""
        transform = self.recipe.augmentation.build(image_size=self.recipe.image_size)
        return Images(transform, level=self.data.level, notes_views=self.fixed_views is not None)

    def prepare(self, batch: ImageBatch, at: StepContext) -> ImageBatch:
        """The batch normalised, with the teacher's features of its images as answers."""
        pixels = batch.images.to(self.site.device, non_blocking=True)
        return super().prepare(batch._replace(images=pixels, answers=self._standardize(self._look_up(batch))), at)

    def _look_up(self, batch: ImageBatch) -> Tensor:
        """What the teacher says; where it is kept, it is asked about those views only that it has not seen."""
        if self.fixed_views is not None and (batch.views is None or self.cache is None):  # an example: nobody is asked
            return torch.zeros(batch.num_samples, self.teacher.shape.size, device=self.site.device)
        return self._ask(batch, self.cache)

    def _ask(self, batch: ImageBatch, cache: FeatureCache | None) -> Tensor:
        def pixels() -> Tensor:
            return batch.images.to(self.site.device, non_blocking=True).float() / 255.0

        if cache is None:
            return self.teacher(pixels())
        assert batch.views is not None, "images of a cache have numbers of views"
        return cache.answer(batch.indices, batch.views, pixels=pixels, teacher=self.teacher, device=self.site.device)

    def _standardize(self, rows: Tensor) -> Tensor:
        assert isinstance(self.model, FeatureModel), "make_model gives one"
        kind, shape = self.recipe.features.standardize, self.model.shape
        features = shape.split(rows)
        return shape.join(self.model.standardize(features) if kind == "data" else whiten(features, kind))

    def keep_answers(self, data: Dataset) -> Callable[[ImageBatch], Tensor]:
        """From batches of data as evaluation sees it to the teacher's features, standardised; they are kept too."""
        cache = None
        if self.fixed_views is not None:
            view = self.evaluation_view
            seen = hash_parts("evaluation", view.image_size, view.crop_ratio, view.interpolation)
            cache = self._open_cache(data, views=seen, num_views=1)
        return lambda batch: self._standardize(self._ask(batch, cache))

    def _open_cache(self, data: Dataset, *, views: str, num_views: int) -> FeatureCache | None:
        """What the teacher said before of the same views of the same images; nothing is made for a plan."""
        settings, shape = self.recipe.teacher, self.teacher.shape
        if self.site.folder is None:
            check_room(num_samples=len(data), num_views=num_views, shape=shape, limit=settings.cache_limit)
            return None
        return FeatureCache.open(
            Path(settings.cache_folder) if settings.cache_folder else default_folder(),
            teacher=self.teacher.fingerprint,
            data=fingerprint_data(data),
            augmentation=views,
            num_samples=len(data),
            num_views=num_views,
            shape=shape,
            limit=settings.cache_limit,
        )

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> FeatureDistillation:
        """The loss between student and teacher, watched for answers that are the same for all images."""
        assert isinstance(self.model, FeatureModel), "make_model gives one"
        num_images = self.recipe.batch_size // self.site.world.num_ranks
        is_watched = not is_trial and num_images >= _FEWEST_WATCHED
        watch = self.make_watch(make_signs(self.model), is_trial=False) if is_watched else None
        return FeatureDistillation(self.recipe.features, shape=self.model.shape, watch=watch)

    def own_evaluators(self, loaders: Loaders) -> Sequence[Evaluator]:
        """The similarity to the teacher."""
        return [SimilarityEvaluator(self, loaders)] if isinstance(self.model, FeatureModel) else []


def make_signs(model: FeatureModel) -> list[Sign]:
    """What a student that has collapsed shows: one answer to all images, or answers along one line."""
    line = Nearness("effective_rank", 1.0, 0.02)
    return [
        constant_features(dim=model.shape.patches or model.shape.summary, remedies=_REMEDIES),
        Sign("one line", "what the student says of images differs along one direction only", (line,), _REMEDIES),
    ]
