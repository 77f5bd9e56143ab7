"""What a recipe of distillation says beside what one of classification does."""

from collections.abc import Mapping, Set
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vitrail.settings.section import ImageSize, Section
from vitrail.tasks.classify.settings import ClassifyRecipe


class TeacherSettings(Section):
    """Teacher to learn from, besides the labels."""

    model: str | None = None
    """teacher: a run, a saved model, timm/NAME, timm/NAME@WEIGHTS, FILE.onnx or module:function; several with commas"""
    kind: Literal["soft", "hard", "token"] = "hard"
    """soft: the teacher's probabilities; hard: its answer; token: its answer, by a distillation token and head"""
    weight: float | None = Field(default=None, ge=0.0, le=1.0)
    """weight of the teacher's part of the loss; null: 0.1 for soft, 0.5 for hard and token"""
    temperature: PositiveFloat = 3.0
    """temperature of soft distillation"""
    image_size: ImageSize | None = None
    """size of the images that the teacher sees; null: its own"""
    classes: str | None = None
    """a JSON file {class: the teacher's class}, for a teacher of other classes"""
    cache: str | None = Field(default=None, pattern=r"^views:[1-9]\d*$")
    """views:8 keeps the teacher's answers to eight fixed views of each image; null: asked at every step"""
    cache_folder: str | None = None
    """folder that the teacher's answers are kept in; null: ~/.cache/vitrail"""
    cache_top: PositiveInt = 10
    """number of classes to keep of each answer, the most probable ones; the others share what is left"""

    def unused(self) -> Set[str]:
        """What is read only by soft distillation, or where answers are kept."""
        of_soft = {"temperature"} if self.kind != "soft" else set()
        return of_soft | ({"cache_folder", "cache_top"} if self.cache is None else set())

    @property
    def share(self) -> float:
        """The part of the loss that is the teacher's: by default lambda of eq. 3.2, one half in eq. 3.3."""
        if self.weight is not None:
            return self.weight
        return 0.1 if self.kind == "soft" else 0.5

    @property
    def num_views(self) -> int | None:
        """Fixed views of an image, where answers are cached."""
        return None if self.cache is None else int(self.cache.removeprefix("views:"))


class DistillRecipe(ClassifyRecipe):
    """A recipe that trains a classifier on labels and on what a teacher answers."""

    short_keys: ClassVar[Mapping[str, str]] = {**ClassifyRecipe.short_keys, "teacher": "teacher.model"}
    task: str = "distill"
    teacher: TeacherSettings = TeacherSettings()
