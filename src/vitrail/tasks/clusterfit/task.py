"""ClusterFit+: a classifier of the clusters of another model's features (thesis 2.4.2)."""

from typing import ClassVar

from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.task import Classify
from vitrail.tasks.clusterfit.clustering import cluster_data
from vitrail.tasks.clusterfit.settings import ClusterFitRecipe
from vitrail.tasks.images.labelled_data import LabelledData


class ClusterFit(Classify):
    """A classifier whose labels are clusters."""

    Recipe: ClassVar[type[Recipe]] = ClusterFitRecipe
    recipe: ClusterFitRecipe

    @property
    def num_passes(self) -> int:
        """How many images are embedded before the first step: those of both splits, and a new head's."""
        return super().num_passes + self.data.num_train + self.data.num_val

    def check(self) -> None:
        """Clusters are of something."""
        if self.recipe.clusters.of is None:
            raise ValueError("clusters are of a model's features: add clusters.of=RUN, a run or a saved model")

    def open(self) -> LabelledData:
        """Images, whatever their labels are, with their clusters."""
        self.check()
        self.data = cluster_data(self.open_data(), self.recipe, site=self.site)
        return self.data
