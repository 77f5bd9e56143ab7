"""What is learnt."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from vitrail.settings.own import OWN_PATTERN
from vitrail.settings.section import ImageSize, Section

OwnName = Annotated[str, Field(pattern=OWN_PATTERN)]


class ObjectiveSettings(Section):
    """What is minimised."""

    loss: Literal["cross_entropy", "bce"] | OwnName = "cross_entropy"
    """cross_entropy; bce, where every class mixed in counts in full; or module:function of your own"""
    smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    """label smoothing"""
    class_weights: bool = False
    """weigh rare classes up in the loss"""


class EmbeddingSettings(Section):
    """What is learnt in the place of a classifier: an embedding to search by (Grafit and its kin)."""

    projector: Literal["none", "linear", "mlp"] | None = None
    """between trunk and embedding; null: no embedding is learnt"""
    dim: PositiveInt = 256
    """numbers of a projection"""
    hidden_dim: PositiveInt = 4096
    """width inside mlp, and inside the predictor of the instance loss"""
    retrieve: Literal["projection", "trunk"] = "projection"
    """what an image is found by"""
    knn: NonNegativeFloat = 1.0
    """weight of the neighbour loss on the labels"""
    instance: NonNegativeFloat = 1.0
    """weight of the instance loss, for which augmentation.views must be 2 or more"""
    cross_entropy: NonNegativeFloat = 0.0
    """weight of the loss of a classifier on the trunk, which is then what the run is measured by"""
    triplet: NonNegativeFloat = 0.0
    """weight of the triplet loss between views"""
    temperature: PositiveFloat = 0.05
    """of the neighbour loss"""
    margin: PositiveFloat = 0.2
    """of the triplet loss"""
    memory_momentum: float = Field(default=0.5, ge=0.0, lt=1.0)
    """of an old embedding in the memory when its image is seen again"""
    target_decay: float = Field(default=0.996, ge=0.0, le=1.0)
    """of the moving average that the instance loss predicts"""
    target_schedule: Literal["constant", "byol"] = "constant"
    """byol: that decay grows to 1"""

    @property
    def is_learnt(self) -> bool:
        """Whether the run learns an embedding."""
        return self.projector is not None

    @property
    def has_memory(self) -> bool:
        """Whether the embeddings of all training images are kept: for the neighbour loss, or to measure the run by."""
        return self.is_learnt and (self.knn > 0.0 or self.cross_entropy == 0.0)


class TeacherSettings(Section):
    """Who it learns from besides the labels."""

    model: str | None = None
    """a run, a saved model, timm/NAME, timm/NAME@WEIGHTS, FILE.onnx or module:function; several with commas"""
    kind: Literal["soft", "hard", "token"] = "hard"
    """soft: the teacher's probabilities; hard: its answer; token: its answer, by a distillation token and head"""
    weight: float | None = Field(default=None, ge=0.0, le=1.0)
    """of the teacher's part of the loss; null: 0.1 for soft, 0.5 for hard and token"""
    temperature: PositiveFloat = 3.0
    """of soft"""
    image_size: ImageSize | None = None
    """the teacher sees images of this size; null: of its own"""
    classes: str | None = None
    """a JSON file {class: the teacher's class}, for a teacher of other classes"""
    cache: str | None = Field(default=None, pattern=r"^views:[1-9]\d*$")
    """views:8 keeps the teacher's answers to eight fixed views of each image; null: asked at every step"""
    cache_folder: str | None = None
    """where answers are kept; null: ~/.cache/vitrail"""
    cache_top: PositiveInt = 10
    """classes an answer keeps; the others share what is left"""

    @property
    def num_views(self) -> int | None:
        """Fixed views of an image, where answers are cached."""
        return None if self.cache is None else int(self.cache.removeprefix("views:"))
