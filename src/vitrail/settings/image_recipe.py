"""The recipe of a task that learns from images."""

from pydantic import Field

from vitrail.settings.images import AugmentationSettings
from vitrail.settings.limits import MIN_CROP_RATIO
from vitrail.settings.recipe import Recipe
from vitrail.settings.running import EvaluationSettings
from vitrail.settings.section import ImageSize


class ImageEvaluationSettings(EvaluationSettings):
    """How the run is measured."""

    image_size: ImageSize | None = None
    """side of the evaluation images, or height and width; null: that of the training images"""
    crop_ratio: float | None = Field(default=None, ge=MIN_CROP_RATIO, le=1.0)
    """side of the centre crop over the short side of the resized image; null: the model's own"""
    layers: bool = False
    """write down how much each residual branch adds, which `vitrail inspect` draws over the epochs"""


class ImageRecipe(Recipe):
    """Everything that decides a run on images, but for what its task says."""

    image_size: ImageSize = 224
    """side of the training images, or height and width"""
    augmentation: AugmentationSettings = AugmentationSettings()
    evaluation: ImageEvaluationSettings = ImageEvaluationSettings()
