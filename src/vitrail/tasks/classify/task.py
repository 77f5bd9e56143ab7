"""Classification: a model with a linear head, trained on labels."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vitrail.data.blend import Blend
from vitrail.data.contract import ImageBatch, Level
from vitrail.models.contract import Model
from vitrail.settings.own import is_own, load_own
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.class_task import ClassTask
from vitrail.tasks.classify.evaluator import ClassificationEvaluator
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings
from vitrail.tasks.classify.supervised import Supervised, balance_weights
from vitrail.tasks.contract import Loaders, Objective, StepContext
from vitrail.tasks.images.head_start import count_probed, start_head
from vitrail.tasks.images.image_task import require_classes
from vitrail.tasks.images.initial_weights import make_backbone
from vitrail.tasks.images.labelled_data import LabelledData, check_several_classes, count_labels
from vitrail.tasks.results import Evaluator


class Classify(ClassTask):
    """A classifier of images."""

    Recipe: ClassVar[type[Recipe]] = ClassifyRecipe
    recipe: ClassifyRecipe
    blend: Blend | None

    @property
    def keeps_pairs(self) -> bool:
        """Whether neighbours are mixed, so that batches are cut between pairs."""
        return self.recipe.blend.is_mixing

    @property
    def num_passes(self) -> int:
        """How many images a new head's probe looks at before the first step."""
        return count_probed(self)

    def open(self) -> LabelledData:
        """Images of at least two classes."""
        self.data = self.open_data()
        check_several_classes(self.data)
        return self.data

    def make_model(self, description: Mapping[str, Any]) -> Model:
        """The recipe's model with a classifier of the data's classes."""
        return make_backbone(self.recipe, num_classes=len(require_classes(description)))

    def attach(self, model: Model) -> None:
        """Make what mixes images for the model."""
        super().attach(model)
        smoothing = self.recipe.objective.smoothing
        self.blend = self.recipe.blend.build(num_classes=self.data.num_classes, smoothing=smoothing)

    def start_head(self) -> None:
        """The first weights of a classifier that is new on the weights to start from."""
        if self.has_new_head:
            start_head(self, is_sigmoid=self.data.labels.is_multiple or self.recipe.objective.loss == "bce")

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> Objective[ImageBatch]:
        """The loss on labels."""
        return make_supervised(self.recipe.objective, self.data.labels, allows_each=True)

    def prepare(self, batch: ImageBatch, at: StepContext) -> ImageBatch:
        """Images normalised, then mixed with their labels."""
        batch = super().prepare(batch, at)
        return self.blend(batch, **at._asdict()) if self.blend else batch

    def make_evaluators(self, objective: Objective[ImageBatch], loaders: Loaders) -> Sequence[Evaluator]:
        """Accuracy on val."""
        return [ClassificationEvaluator(self, loaders.val)]


def make_supervised(settings: ObjectiveSettings, labels: Level, *, allows_each: bool = False) -> Supervised:
    """The loss on labels; `allows_each` where two heads may learn them, each by itself."""
    if settings.heads == "each" and not allows_each:
        raise ValueError("objective.heads=each is for task=classify, where both heads learn from labels: leave it out")
    if labels.is_multiple and settings.loss == "cross_entropy":
        raise ValueError("images of this data have several labels: set objective.loss=bce")
    weights = balance_weights(count_labels(labels).tolist()) if settings.class_weights else None
    loss = load_own(settings.loss, what="loss") if is_own(settings.loss) else settings.loss
    return Supervised(loss=loss, smoothing=settings.smoothing, class_weights=weights, heads=settings.heads)
