"""What a recipe of ClusterFit+ says beside what one of classification does."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from vitrail.settings.section import Section
from vitrail.tasks.classify.settings import ClassifyRecipe


class ClustersSettings(Section):
    """Clusters that take the place of labels."""

    number: int = Field(default=1500, ge=2)
    """number of clusters that k-means makes"""
    of: str | None = None
    """run or saved model whose features are clustered"""


class ClusterFitRecipe(ClassifyRecipe):
    """A recipe that trains a classifier on clusters of another model's features."""

    # Names that settings had before are understood too.
    short_keys: ClassVar[Mapping[str, str]] = {
        **ClassifyRecipe.short_keys,
        "data.clusters": "clusters.number",
        "data.clusters_of": "clusters.of",
    }
    task: str = "clusterfit"
    clusters: ClustersSettings = ClustersSettings()
