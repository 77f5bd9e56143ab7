"""What a recipe of DINO says beside what every recipe without labels does."""

from collections.abc import Set

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from vitrail.settings.images import CropSettings
from vitrail.settings.section import ImageSize, Section
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe


class DinoSettings(Section):
    """How a student learns from its own moving average, the teacher."""

    outputs: int = Field(default=65536, ge=2)
    """prototypes that images are compared with"""
    hidden_dim: PositiveInt = 2048
    """width of the hidden layers of the projection head"""
    bottleneck_dim: PositiveInt = 256
    """length of the vectors that the projection head compares with the prototypes"""
    layers: PositiveInt = 3
    """linear layers of the projection head before the prototypes"""
    learns_gain: bool = False
    """learn the length of each prototype; false: it is 1, which is more stable"""
    student_temperature: PositiveFloat = 0.1
    """temperature of the student's answers"""
    teacher_temperature: PositiveFloat = 0.04
    """temperature of the teacher's answers after the warmup; a lower one keeps them from becoming uniform"""
    teacher_temperature_start: PositiveFloat = 0.04
    """temperature of the teacher's answers in the first epoch, where there is a warmup"""
    teacher_temperature_epochs: NonNegativeInt = 0
    """epochs in which the temperature of the teacher grows linearly"""
    centre_momentum: float = Field(default=0.9, ge=0.0, le=1.0)
    """share of the old centre that is kept in a step; 1: answers are not centred, and one of them comes to prevail"""
    teacher_momentum: float = Field(default=0.996, ge=0.0, le=1.0)
    """share of its old weights that the teacher keeps in the first step"""
    teacher_momentum_end: float = Field(default=1.0, ge=0.0, le=1.0)
    """share of its old weights that the teacher keeps at the end, reached by a cosine"""
    frozen_epochs: NonNegativeFloat = 1.0
    """epochs at the beginning in which the prototypes stay as they are"""

    def unused(self) -> Set[str]:
        """What is read only where there is a warmup."""
        return set() if self.teacher_temperature_epochs else {"teacher_temperature_start"}


class DinoCropsSettings(Section):
    """Crops of an image: two global ones of the recipe's image_size, and local ones; the teacher sees the global."""

    num_local: NonNegativeInt = 8
    """local crops of an image"""
    local_size: ImageSize = 96
    """side of the local crops, or height and width; a model that takes one size gets them at that size"""
    first: CropSettings = CropSettings(blur=1.0)
    second: CropSettings = CropSettings(blur=0.1, solarise=0.2)
    local: CropSettings = CropSettings(scale=(0.05, 0.4), blur=0.5)

    def unused(self) -> Set[str]:
        """What is read only where there are local crops."""
        return set() if self.num_local else {"local_size", "local"}


class DinoRecipe(UnlabelledRecipe):
    """A recipe that learns by self-distillation, without labels (DINO)."""

    task: str = "dino"
    dino: DinoSettings = DinoSettings()
    crops: DinoCropsSettings = DinoCropsSettings()

    def unused(self) -> Set[str]:
        """Crops have operations of their own."""
        return {"augmentation"}
