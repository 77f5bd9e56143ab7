"""What a recipe of turned images says."""

from pydantic import Field

from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.section import Section


class TurnSettings(Section):
    """How images are turned."""

    number: int = Field(default=4, ge=2, le=4)
    """quarters of a turn to tell apart"""


class RotationRecipe(ImageRecipe):
    """A recipe that learns how far images were turned."""

    task: str = "rotation"
    turns: TurnSettings = TurnSettings()
