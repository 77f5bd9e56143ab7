"""What a recipe that learns the features of a teacher says beside what every recipe without labels does."""

from collections.abc import Mapping, Set
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from vitrail.settings.section import ImageSize, Section
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe


class FeatureTeacherSettings(Section):
    """Teacher whose features are learnt."""

    model: str | None = None
    """teacher: a run, a saved model, a name of `vitrail models`, timm/NAME, FILE.onnx or module:function"""
    image_size: ImageSize | None = None
    """size that images are resized to for the teacher; null: its own"""
    cache: str | None = Field(default=None, pattern=r"^views:[1-9]\d*$")
    """views:8 keeps the teacher's features of eight fixed views of each image; null: asked at every step"""
    cache_folder: str | None = None
    """folder that the teacher's features are kept in; null: ~/.cache/vitrail"""
    cache_limit: PositiveFloat = 4.0
    """gigabytes that the kept features may take"""

    def unused(self) -> Set[str]:
        """What is read only where features are kept."""
        return {"cache_folder", "cache_limit"} if self.cache is None else set()

    @property
    def num_views(self) -> int | None:
        """Fixed views of an image, where features are kept."""
        return None if self.cache is None else int(self.cache.removeprefix("views:"))


class FeatureSettings(Section):
    """Which features are learnt, and how they are compared."""

    summary: NonNegativeFloat = 1.0
    """weight of the loss on the summary, the features that a classifier would read; 0: it is not learnt"""
    patches: NonNegativeFloat = 1.0
    """weight of the loss on the patches; 0: they are not learnt"""
    cosine: float = Field(default=0.9, ge=0.0, le=1.0)
    """part of either loss that is 1 minus the cosine of student and teacher; the rest is smooth L1"""
    standardize: Literal["data", "image", "none"] = "data"
    """teacher's features get mean 0 and deviation 1: each number over the data, or all numbers of an image or patch"""
    grid: Literal["student", "teacher"] = "student"
    """whose grid patches are compared on; those of the other are resampled to it"""
    projector: Literal["linear", "mlp"] = "mlp"
    """what brings the student's features into the teacher's space, one for the summary and one for the patches"""
    hidden_dim: PositiveInt = 1024
    """width inside the MLPs of the projectors"""

    @property
    def levels(self) -> frozenset[str]:
        """What is learnt: "summary", "patches" or both."""
        return frozenset(level for level in ("summary", "patches") if getattr(self, level) > 0.0)

    def unused(self) -> Set[str]:
        """What is read only by MLPs, or where patches are learnt."""
        return ({"hidden_dim"} if self.projector == "linear" else set()) | (set() if self.patches else {"grid"})


class FeaturesRecipe(UnlabelledRecipe):
    """A recipe that trains a backbone to say of images what a teacher says, without labels."""

    short_keys: ClassVar[Mapping[str, str]] = {**UnlabelledRecipe.short_keys, "teacher": "teacher.model"}
    task: str = "features"
    teacher: FeatureTeacherSettings = FeatureTeacherSettings()
    features: FeatureSettings = FeatureSettings()
