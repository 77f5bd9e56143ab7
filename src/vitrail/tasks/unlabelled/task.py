"""Learning from images without labels: what DINO, masked images and a teacher's features share."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from vitrail.data.checks import as_pair
from vitrail.data.contract import CropsBatch, Dataset, ImageBatch
from vitrail.data.loader import Loader
from vitrail.data.quarantine import Problem
from vitrail.data.sampler import Sampler
from vitrail.data.samples import SampleMaker
from vitrail.evaluation.together import Alone
from vitrail.models.contract import Model
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import B, EvaluationRequest, Initial, Loaders, Objective, RunReader, StepContext, TaskData
from vitrail.tasks.images.image_task import VisualTask, count_workers
from vitrail.tasks.images.initial_weights import make_backbone
from vitrail.tasks.results import Answer, Evaluator, Measure
from vitrail.tasks.unlabelled.collapse import CollapseError, CollapseWatch, Sign, constant_features
from vitrail.tasks.unlabelled.evaluator import FeatureEvaluator
from vitrail.tasks.unlabelled.feature_sections import feature_sections
from vitrail.tasks.unlabelled.measures import MEASURES, SIGNALS
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe
from vitrail.tasks.unlabelled.unlabelled_data import UnlabelledData, open_unlabelled, remark_masks, remark_sizes

if TYPE_CHECKING:
    from vitrail.inference.passes import Passes
    from vitrail.inference.trained import Trained

_LEAST_GRACE = 100  # steps
_PATIENCE = 100  # steps for which a sign of collapse must last


class UnlabelledTask(VisualTask[B]):
    """A task that learns from images alone.

    A subclass has a recipe derived from `UnlabelledRecipe` and gives `make_model` (an `AroundTrunk` on
    `make_trunk()`), `make_samples` and `make_objective`, whose objective owns the `make_watch` of its signs. Batches of
    `Images` and of `Crops` are prepared here; one of its own overrides `prepare`, `example` and `respond`. A subclass
    with a measure of its own puts it first in `measures`, and its evaluator into `own_evaluators`.
    """

    Recipe: ClassVar[type[Recipe]] = UnlabelledRecipe
    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    signals: ClassVar[tuple[Measure, ...]] = SIGNALS
    measures_head: ClassVar[bool] = False  # whether the task's own measure asks what stands on the trunk
    recipe: UnlabelledRecipe
    data: UnlabelledData

    @abstractmethod
    def make_samples(self) -> SampleMaker[Any, B]:
        """What is made of a training image, and of many."""

    def make_trunk(self, **settings: Any) -> Model:
        """The recipe's backbone without classifier; the seed decides its initial weights."""
        return make_backbone(self.recipe, num_classes=0, **settings)

    @property
    def reads_patches(self) -> bool:
        """Whether the features are means of patches, where a method teaches the summary token nothing."""
        return False

    def make_watch(
        self,
        signs: Sequence[Sign],
        *,
        is_trial: bool,
        patience: int = _PATIENCE,
        grace: int | None = None,
        beginning: tuple[str, str] | None = None,
    ) -> CollapseWatch:
        """The watch of an objective, which does what the recipe says when the run has collapsed.

        Unless `grace` says so, a run has the warmup of its learning rate to get away from the signs it starts with;
        `beginning` is what to change in one that does not.
        """
        recipe, site = self.recipe, self.site
        if grace is None:
            grace = max(_LEAST_GRACE, self.warmup_steps)
        return CollapseWatch(
            signs,
            action=recipe.run.on_collapse,
            patience=patience,
            grace=grace,
            beginning=beginning,
            world=Alone() if is_trial else site.world,
            say=site.reporter.say if site.world.is_main else _say_nothing,
        )

    def judge_features(self, deviation: float, *, dim: int, epoch: float) -> None:
        """Say of a run behind its warmup, once an evaluation, that all images have the same features.

        A watch that looks at features has seen it before; the loss of masked images does not show it.
        """
        recipe = self.recipe
        sign = constant_features(dim=dim, remedies=("lower lr", "raise schedule.warmup_epochs"))
        grace = max(_LEAST_GRACE, self.warmup_steps) + _PATIENCE
        if deviation > sign.conditions[0].within or epoch * self.steps_per_epoch <= grace:
            return
        first, second = sign.remedies
        told = f"({sign.kind}): {sign.meaning} at epoch {epoch:g} (feature_deviation {deviation:.3g})"
        message = f"the run has collapsed {told}; {first}, or {second}"
        if recipe.run.on_collapse == "stop":
            raise CollapseError(f"{message}; run.on_collapse=warn would go on")
        if self.site.world.is_main:
            self.site.reporter.say(message)

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate grows."""
        recipe = self.recipe
        total_steps = recipe.steps or math.ceil(recipe.epochs * self.steps_per_epoch)
        return recipe.schedule.count_warmup(steps_per_epoch=self.steps_per_epoch, total_steps=total_steps)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training images, as the sampler counts them."""
        return self.data.num_train // min(self.recipe.batch_size, self.data.num_train)

    @property
    def deciding(self) -> Measure:
        """The first measure that the data allows: without labels, or without kNN, one that needs none."""
        labels = self.data.val_labels if self.recipe.watch.knn else None
        kind = "" if labels is None else "knn_mean_average_precision" if labels.is_multiple else "knn_top1"
        return next(one for one in self.measures if one.key == kind or not one.key.startswith(("knn_", "probe_")))

    def check(self) -> None:
        """Refuse settings that need labels or a classifier."""
        recipe = self.recipe
        if recipe.run.sharding == "full":
            raise ValueError(f"the task {recipe.task} is not learnt with sharding=full: leave it out, DDP does it")
        if recipe.data.balanced:
            raise ValueError("data.balanced draws classes equally often, and nothing is learnt from classes here")
        if recipe.model.head_start in ("probe", "zero"):
            raise ValueError(f"head_start={recipe.model.head_start} is for classifiers: leave it out")

    def open(self) -> UnlabelledData:
        """Open images with labels or without; what they are used for is said once a run."""
        self.check()
        count_workers(self.recipe, self.site.device)  # more than can be are refused before anything is read
        self.data = open_unlabelled(self.recipe.data)
        if self.site.stage == 0:
            self.site.reporter.say(self.data.remark())
            if told := remark_masks(self.recipe.data):
                self.site.reporter.say(told)
        if self.site.stage == 0 and self.site.folder is not None and (told := remark_sizes(self.data.train, self.crop)):
            self.site.reporter.say(told)
        if self.recipe.regularisation.early_stop is not None and not self.deciding.is_quality:
            raise ValueError(
                f"regularisation.early_stop needs a measure of quality, and {self.data.train.name} has no labels to "
                "measure with: leave it out"
            )
        return self.data

    @property
    def crop(self) -> int:
        """The longest side of what is cut out of a training image, in pixels."""
        return max(as_pair(self.recipe.image_size))

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json; nothing was learnt from labels, and perhaps nothing by a class stage."""
        found = super().describe(data) | {"uses_labels": False}
        return found | {"reads_patches": True} if self.reads_patches else found

    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders:
        """What `make_samples` makes of train, and the images of val as they are."""
        recipe, site = self.recipe, self.site
        quarantine = self.make_quarantine(listing)
        train = Loader(
            self.data.train,
            make=self.make_samples(),
            sampler=Sampler(
                len(self.data.train),
                batch_size=recipe.batch_size,
                seed=site.seed,
                ranks=site.world.ranks,
                num_micro_batches=num_parts,
                keeps_pairs=self.keeps_pairs,
                num_repeats=recipe.augmentation.repeats,
                groups=self.data.train.groups,
            ),
            fixed_views=self.fixed_views,
            num_workers=self.count_readers(),
            quarantine=quarantine,
            pin_memory=site.device.type == "cuda",
        )
        return Loaders(train, self.make_plain_loader("val", batch_size=self.val_batch, quarantine=quarantine))

    def prepare(self, batch: B, at: StepContext) -> B:
        """Images or crops on the device and normalised."""
        moved = batch.to(self.site.device, non_blocking=True)
        if isinstance(moved, CropsBatch):
            return cast(B, moved._replace(crops=tuple(map(self.normalize, moved.crops))))
        assert isinstance(moved, ImageBatch), "a batch of another kind is prepared by its own task"
        return cast(B, moved._replace(images=self.normalize(moved.images)))

    def example(self, count: int) -> B:
        """A batch of noise: images in one view, of the recipe's size."""
        images = torch.randint(256, (count, 3, *as_pair(self.recipe.image_size)), dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        return cast(B, ImageBatch(images, torch.full((count,), -1), torch.arange(count)))

    def respond(self, model: nn.Module, batch: B) -> Any:
        """The features of the first view of each image."""
        assert isinstance(model, Model), "what is trained answers for itself"
        return model.for_inference().summarize(first_images(batch))

    def measure_trained(self, model: Model) -> dict[str, float]:
        """The task's own figures, where the model has more than a trunk, and those of its features."""
        loaders = self.make_loaders(num_parts=1, listing=None)
        evaluators = [*self.own_evaluators(loaders), FeatureEvaluator(self, loaders, is_training=False)]
        return dict(pair for one in evaluators for pair in one.measure(model))

    def take_trained(self, request: EvaluationRequest) -> Model:
        """Attach what the run has learnt beside its trunk too, where a measure asks for it and it can be had."""
        if self.measures_head and request.learnt is not None:
            try:
                model = self._rebuild(request.learnt(), trunk=request.trained.model)
                self.attach(model)
                return model
            except ValueError as error:
                self.unmeasured = f"the {self.measures[0].label} is left out: {error}"
        return super().take_trained(request)

    def _rebuild(self, learnt: Initial, *, trunk: Model) -> Model:
        """The model as its run trained it, around the trunk that it saved."""
        model = self.make_model(learnt.description)
        assert isinstance(model, Model), "tasks on images make models of images"
        try:
            model.load_state_dict(dict(learnt.weights))
            model.for_inference().load_state_dict(trunk.state_dict())
        except (RuntimeError, ValueError):
            raise ValueError("the checkpoints of the run are not of its model") from None
        return model.to(self.site.device).eval()

    @classmethod
    def answer(
        cls, trained: "Trained", data: Dataset, *, passes: "Passes", top: int, note_unread: Callable[[Problem], object]
    ) -> Iterator[Answer]:
        """Refuse: what was learnt has no classes."""
        raise ValueError(
            f"a model of the task {trained.task} has learnt without labels and names no classes: train it on labels "
            "with vitrail train init=RUN, or search with vitrail gallery"
        )

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """Neighbours of some images, and where the model looks in them."""
        return feature_sections(run)

    def count_measured(self, data: TaskData) -> int:
        """Images of both splits that an evaluation looks at; without a val it looks at none."""
        watch = self.recipe.watch
        return min(data.num_val, watch.val_images) + min(data.num_train, watch.train_images) if data.num_val else 0

    def make_evaluators(self, objective: Objective[B], loaders: Loaders) -> Sequence[Evaluator]:
        """What the task alone asks, then features by neighbours, probe and spread."""
        return [*self.own_evaluators(loaders), FeatureEvaluator(self, loaders)]

    def own_evaluators(self, loaders: Loaders) -> Sequence[Evaluator]:
        """How that is measured which this task alone learns; they give nothing of a model that is but its trunk."""
        return ()


def first_images(batch: Any) -> Tensor:
    """The first view of each image, [batch, 3, height, width]."""
    images: Tensor = batch.crops[0] if isinstance(batch, CropsBatch) else batch.images
    return images[:, 0] if images.ndim == 5 else images


def _say_nothing(text: str) -> None:
    """Leave it to the main process."""
