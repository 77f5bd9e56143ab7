"""Embeddings to search by: Grafit and the losses it is compared with, on a projector above a trunk."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from vitrail.data.contract import ImageBatch
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.class_task import ClassTask
from vitrail.tasks.classify.task import make_supervised
from vitrail.tasks.contract import Loaders, Objective
from vitrail.tasks.embed.evaluator import NeighbourEvaluator, recompute
from vitrail.tasks.embed.grafit import Grafit
from vitrail.tasks.embed.memory import Memory, Processes
from vitrail.tasks.embed.settings import EmbedRecipe
from vitrail.tasks.embed.target_network import TargetNetwork
from vitrail.tasks.images.image_task import require_classes
from vitrail.tasks.images.initial_weights import make_backbone
from vitrail.tasks.images.labelled_data import LabelledData, check_several_classes
from vitrail.tasks.results import Evaluator


class Embed(ClassTask):
    """An embedding, measured by what its nearest training images are; by its classifier where it has one."""

    Recipe: ClassVar[type[Recipe]] = EmbedRecipe
    recipe: EmbedRecipe
    model: EmbeddingModel

    @property
    def num_views(self) -> int:
        """Views of an image that the losses compare."""
        return self.recipe.embedding.num_views

    @property
    def num_passes(self) -> int:
        """How many training images are embedded anew at the end, for the memory."""
        return self.data.num_train if self.recipe.embedding.has_memory else 0

    def check(self) -> None:
        """Losses need what they compare, and a projector a loss."""
        settings, start = self.recipe.embedding, self.recipe.model.head_start
        if start in ("probe", "zero"):
            raise ValueError(
                f"head_start={start} is for classifiers: an embedding's head begins at random, leave it out"
            )
        if self.recipe.run.sharding == "full":
            raise ValueError("an embedding is not learnt with sharding=full: leave it out, DDP shares the memory too")
        if settings.compares_views and settings.num_views < 2:
            raise ValueError(
                "the instance and triplet losses compare views of an image: set embedding.views to 2 or more, "
                "or embedding.instance=0"
            )
        is_projected = settings.knn > 0.0 or settings.compares_views
        if settings.projector != "none" and not is_projected:
            raise ValueError(
                "no loss reads the projector: set embedding.projector=none, or a weight of embedding above 0"
            )

    def open(self) -> LabelledData:
        """Open images of one label each; of one class in all where images themselves are told apart."""
        self.check()
        self.data = self.open_data()
        if not self.recipe.embedding.compares_views:
            check_several_classes(self.data)
        if self.data.labels.is_multiple:
            raise ValueError(
                f"images of {self.data.train.name} have several labels: an embedding is learnt from one label an image"
            )
        return self.data

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json; it says whether labels were learnt from, or measure only."""
        settings = self.recipe.embedding
        return super().describe(data) | {"uses_labels": settings.knn > 0.0 or settings.cross_entropy > 0.0}

    def make_model(self, description: Mapping[str, Any]) -> EmbeddingModel:
        """A projector on the recipe's model, and what the losses need besides."""
        settings = self.recipe.embedding
        trunk = make_backbone(self.recipe, num_classes=0)
        num_classes = len(require_classes(description)) if settings.cross_entropy > 0.0 else 0
        return EmbeddingModel(
            trunk,
            EmbeddingSettings(
                projector=settings.projector,
                dim=settings.dim,
                hidden_dim=settings.hidden_dim,
                has_predictor=settings.instance > 0.0,
                num_classes=num_classes,
                retrieve=settings.retrieve,
            ),
        )

    def attach(self, model: Model) -> None:
        """Get ready to prepare batches for an embedding model."""
        assert isinstance(model, EmbeddingModel), "make_model gives one"
        super().attach(model)

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> Grafit:
        """The losses of the recipe, with a memory of embeddings and a target network on the model's device.

        Without a classifier there is a memory whatever the losses: the run is measured by its neighbours.
        """
        settings, world = self.recipe.embedding, self.site.world
        processes = Processes()
        if not is_trial:
            processes = Processes(rank=world.rank, num_ranks=world.num_ranks, all_reduce=world.sum)
        memory = target = None
        if settings.has_memory:
            memory = Memory(
                torch.from_numpy(self.data.labels.labels.copy()),
                dim=self.model.dim,
                momentum=settings.memory_momentum,
                seed=self.recipe.seed,
                processes=processes,
                device=self.site.device,
            )
        if settings.instance > 0.0:
            growth = total_steps if settings.target_schedule == "byol" else None
            target = TargetNetwork(self.model, decay=settings.target_decay, total_steps=growth)
        return Grafit(
            settings,
            memory=memory,
            target=target,
            supervised=make_supervised(self.recipe.objective, self.data.labels),
        )

    def make_evaluators(self, objective: Objective[ImageBatch], loaders: Loaders) -> Sequence[Evaluator]:
        """Accuracy of the classifier, or of the neighbours among the training images."""
        assert isinstance(objective, Grafit), "make_objective gives one"
        return [NeighbourEvaluator(self, loaders.val, memory=objective.memory)]

    def finish(self, objective: Objective[ImageBatch], loaders: Loaders) -> None:
        """Compute the memory anew with the weights that the stage ends with (thesis 2.3.1)."""
        assert isinstance(objective, Grafit), "make_objective gives one"
        if objective.memory is not None:
            recompute(objective.memory, self, loaders)
