"""What can be learnt: one folder a task, one row of the table."""

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vitrail.settings.recipe import Recipe
    from vitrail.tasks.contract import Task


class Row(NamedTuple):
    """Where a task lives; nothing is imported until it is asked for."""

    task: str  # module:Class
    recipe: str  # module:Class of its recipe, which imports no torch


TASKS: dict[str, Row] = {
    "classify": Row("vitrail.tasks.classify.task:Classify", "vitrail.tasks.classify.settings:ClassifyRecipe"),
    "distill": Row("vitrail.tasks.distill.task:Distill", "vitrail.tasks.distill.settings:DistillRecipe"),
    "embed": Row("vitrail.tasks.embed.task:Embed", "vitrail.tasks.embed.settings:EmbedRecipe"),
    "features": Row("vitrail.tasks.features.task:FeatureTask", "vitrail.tasks.features.settings:FeaturesRecipe"),
    "clusterfit": Row("vitrail.tasks.clusterfit.task:ClusterFit", "vitrail.tasks.clusterfit.settings:ClusterFitRecipe"),
    "dino": Row("vitrail.tasks.dino.task:DinoTask", "vitrail.tasks.dino.settings:DinoRecipe"),
    "tokenizer": Row("vitrail.tasks.tokenizer.task:Tokenize", "vitrail.tasks.tokenizer.settings:TokenizerRecipe"),
    "segment": Row("vitrail.tasks.segment.task:Segment", "vitrail.tasks.segment.settings:SegmentRecipe"),
    "detect": Row("vitrail.tasks.detect.task:Detect", "vitrail.tasks.detect.settings:DetectRecipe"),
    "translate": Row("vitrail.tasks.translate.task:Translate", "vitrail.tasks.translate.settings:TranslateRecipe"),
    "masked": Row("vitrail.tasks.masked.task:MaskedModelling", "vitrail.tasks.masked.settings:MaskedRecipe"),
}


def find_task(name: str) -> "type[Task[Any]]":
    """The class of a task, by its name in the table or as module:Class."""
    return _load(TASKS[name].task) if name in TASKS else _load_own(name)


def find_recipe_class(name: str) -> "type[Recipe]":
    """The class of a task's recipes."""
    return _load(TASKS[name].recipe) if name in TASKS else _load_own(name).Recipe


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _load_own(name: str) -> Any:
    from vitrail.settings.own import is_own, load_own

    if not is_own(name):
        raise ValueError(f"there is no task {name!r}: there are {', '.join(TASKS)}, or module:Class of your own")
    found = load_own(name, what="task")
    if not hasattr(found, "Recipe"):
        raise ValueError(f"the task {name} is no class of a task: see vitrail.tasks.contract.Task")
    return found
