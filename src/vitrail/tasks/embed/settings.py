"""What a recipe of embeddings says beside what every image recipe does."""

from collections.abc import Mapping, Set
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.section import Section
from vitrail.tasks.classify.settings import ObjectiveSettings


class EmbeddingTaskSettings(Section):
    """Embedding to search by, which is learnt in the place of a classifier (Grafit and its kin)."""

    projector: Literal["none", "linear", "mlp"] = "mlp"
    """layers between trunk and embedding: none, a linear layer, or an mlp of two"""
    dim: PositiveInt = 256
    """embedding dimension, behind the projector"""
    hidden_dim: PositiveInt = 4096
    """width of the hidden layer of the mlp projector, and of the predictor of the instance loss"""
    retrieve: Literal["projection", "trunk"] = "projection"
    """features that images are searched by: those of the projection or of the trunk"""
    knn: NonNegativeFloat = 1.0
    """weight of the neighbour loss on the labels"""
    instance: NonNegativeFloat = 1.0
    """weight of the instance loss, which compares views of an image"""
    cross_entropy: NonNegativeFloat = 0.0
    """weight of the loss of a classifier on the trunk, which is then what the run is measured by"""
    triplet: NonNegativeFloat = 0.0
    """weight of the triplet loss between views"""
    temperature: PositiveFloat = 0.05
    """temperature of the neighbour loss"""
    margin: PositiveFloat = 0.2
    """margin of the triplet loss"""
    memory_momentum: float = Field(default=0.5, ge=0.0, lt=1.0)
    """share of an old embedding that the memory keeps when its image is seen again"""
    target_decay: float = Field(default=0.996, ge=0.0, le=1.0)
    """decay of the target network, the moving average of the weights that the instance loss predicts"""
    views: PositiveInt | None = None
    """views of an image in a batch; null: two where the instance or triplet loss compares them, else one"""
    target_schedule: Literal["constant", "byol"] = "constant"
    """course of target_decay; byol: it grows to 1 by a cosine"""

    def unused(self) -> Set[str]:
        """What losses of no weight read."""
        unused = set() if self.knn else {"temperature"}
        unused |= set() if self.triplet else {"margin"}
        unused |= set() if self.instance else {"target_decay", "target_schedule"}
        unused |= set() if self.projector == "mlp" or self.instance else {"hidden_dim"}
        return unused | (set() if self.has_memory else {"memory_momentum"})

    @property
    def compares_views(self) -> bool:
        """Whether a loss needs several views of an image."""
        return self.instance > 0.0 or self.triplet > 0.0

    @property
    def num_views(self) -> int:
        """Views of an image in a batch."""
        return self.views or (2 if self.compares_views else 1)

    @property
    def has_memory(self) -> bool:
        """Whether the embeddings of all training images are kept: for the neighbour loss, or to measure the run by."""
        return self.knn > 0.0 or self.cross_entropy == 0.0


class EmbedRecipe(ImageRecipe):
    """A recipe that trains an embedding to search by."""

    # The name that a setting had before is understood too.
    short_keys: ClassVar[Mapping[str, str]] = {**ImageRecipe.short_keys, "augmentation.views": "embedding.views"}
    task: str = "embed"
    embedding: EmbeddingTaskSettings = EmbeddingTaskSettings()
    objective: ObjectiveSettings = ObjectiveSettings()

    def unused(self) -> Set[str]:
        """What is read only by the loss of a classifier."""
        return set() if self.embedding.cross_entropy else {"objective"}
