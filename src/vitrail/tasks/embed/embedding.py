"""From a recipe to what learns an embedding: the model on its trunk, and the losses with what they remember."""

import torch

from vitrail.data.contract import Level
from vitrail.heads import embed
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.supervised import Supervised
from vitrail.tasks.embed.grafit import Grafit, LossWeights
from vitrail.tasks.embed.memory import Memory, Processes
from vitrail.tasks.embed.target_network import TargetNetwork


def check_views(recipe: Recipe) -> None:
    """Refuse views that nothing compares, and losses that have none to compare."""
    settings, views = recipe.embedding, recipe.augmentation.views
    if views > 1 and not settings.is_learnt:
        raise ValueError(
            f"augmentation.views={views} is for embeddings: set embedding.projector, or use augmentation.repeats"
        )
    if settings.is_learnt and views < 2 and (settings.instance > 0.0 or settings.triplet > 0.0):
        raise ValueError(
            "the instance and triplet losses compare views of an image: set augmentation.views to 2 or more, "
            "or embedding.instance=0"
        )


def check_recipe(recipe: Recipe, labels: Level) -> None:
    """Refuse what does not go with an embedding; `check_views` is for every recipe."""
    blend = recipe.blend
    if labels.is_multiple:
        raise ValueError("images of this data have several labels: an embedding is learnt from one label an image")
    if blend.is_mixing:
        raise ValueError("an embedding is learnt from whole images: set blend.probability=0")
    if recipe.teacher.model is not None:
        raise ValueError("an embedding is learnt without a teacher: leave teacher out, or embedding.projector")
    if recipe.run.sharding == "full":
        raise ValueError("an embedding is not learnt with sharding=full: leave it out, DDP shares the memory too")


def add_embedding(trunk: Model, recipe: Recipe, *, num_classes: int) -> embed.EmbeddingModel:
    """The model that is trained: a projector on the trunk, and what the losses need besides."""
    settings = recipe.embedding
    assert settings.projector is not None
    is_projected = settings.knn > 0.0 or settings.instance > 0.0 or settings.triplet > 0.0
    if settings.projector != "none" and not is_projected:
        raise ValueError("no loss reads the projector: set embedding.projector=none, or a weight of embedding above 0")
    return embed.EmbeddingModel(
        trunk,
        embed.EmbeddingSettings(
            projector=settings.projector,
            dim=settings.dim,
            hidden_dim=settings.hidden_dim,
            has_predictor=settings.instance > 0.0,
            num_classes=num_classes if settings.cross_entropy > 0.0 else 0,
            retrieve=settings.retrieve,
        ),
    )


def make_grafit(
    recipe: Recipe,
    labels: Level,
    *,
    model: embed.EmbeddingModel,
    supervised: Supervised,
    processes: Processes,
    total_steps: int,
    seed: int,
) -> Grafit:
    """The losses of the recipe, with a memory of embeddings and a target network on the model's device.

    Without a classifier there is a memory whatever the losses: the run is measured by its neighbours.
    """
    settings = recipe.embedding
    device = next(model.parameters()).device
    memory = target = None
    if settings.has_memory:
        memory = Memory(
            torch.from_numpy(labels.labels.copy()),
            dim=model.dim,
            momentum=settings.memory_momentum,
            seed=seed,
            processes=processes,
            device=device,
        )
    if settings.instance > 0.0:
        is_growing = settings.target_schedule == "byol"
        target = TargetNetwork(model, decay=settings.target_decay, total_steps=total_steps if is_growing else None)
    return Grafit(
        weights=LossWeights(
            knn=settings.knn,
            instance=settings.instance,
            cross_entropy=settings.cross_entropy,
            triplet=settings.triplet,
        ),
        memory=memory,
        target=target,
        supervised=supervised,
        temperature=settings.temperature,
        margin=settings.margin,
    )
