"""Settings of views that are to be alike."""

from pydantic import NonNegativeFloat

from vitrail.settings.section import Section
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe


class ViewSettings(Section):
    """How views are compared."""

    repulsion: NonNegativeFloat = 1.0
    """weight of telling images apart; 0: nothing keeps all of them from one answer"""


class ViewRecipe(UnlabelledRecipe):
    """A recipe of views that are to be alike."""

    task: str = "toy_views:Views"
    views: ViewSettings = ViewSettings()
