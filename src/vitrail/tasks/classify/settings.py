"""What a recipe of classification says beside what every image recipe does."""

from typing import Annotated, Literal

from pydantic import Field

from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.images import BlendSettings
from vitrail.settings.own import OWN_PATTERN
from vitrail.settings.section import Section

OwnName = Annotated[str, Field(pattern=OWN_PATTERN)]


class ObjectiveSettings(Section):
    """Loss on the labels."""

    loss: Literal["cross_entropy", "bce"] | OwnName = "cross_entropy"
    """loss function: cross_entropy; bce, where every class mixed in counts in full; or module:function of your own"""
    smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    """share of each target that label smoothing spreads over all classes"""
    class_weights: bool = False
    """weigh rare classes up in the loss"""
    heads: Literal["joint", "each"] = "joint"
    """who learns the labels in a model with two heads (distilled: true): their mean, or each head by itself"""


class ClassifyRecipe(ImageRecipe):
    """A recipe that trains a classifier on labels."""

    task: str = "classify"
    blend: BlendSettings = BlendSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
