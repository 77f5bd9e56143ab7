"""The recipe: everything that decides a training run, as data."""

from collections.abc import Mapping
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from vitrail.settings.data import DataSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.running import EvaluationSettings, RunSettings
from vitrail.settings.section import ImageSize, Section
from vitrail.settings.task import EmbeddingSettings, ObjectiveSettings, TeacherSettings


class Recipe(Section):
    """Everything that decides a run."""

    name: str = "custom"
    """of the recipe"""
    image_size: ImageSize = 224
    """of training: side, or height and width"""
    epochs: PositiveFloat = 300.0
    """passes over the training images"""
    steps: PositiveInt | None = None
    """optimizer steps; takes the place of epochs"""
    batch_size: PositiveInt = 1024
    """of one optimizer step, over all devices"""
    seed: NonNegativeInt = 0
    """of every random choice"""
    against: str | None = None
    """published curves to compare the run with"""
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    blend: BlendSettings = BlendSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    teacher: TeacherSettings = TeacherSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    run: RunSettings = RunSettings()
    stages: tuple[dict[str, Any], ...] = ()
    """changes for each stage as {key: value}; each stage starts from the weights of the one before"""

    @property
    def lr(self) -> float:
        """The highest learning rate at this batch size."""
        reference = self.optimizer.reference_batch
        return self.optimizer.lr * (self.batch_size / reference if reference else 1.0)

    @property
    def num_stages(self) -> int:
        """A recipe without stages is its own only one."""
        return max(1, len(self.stages))


# What the command line may say in short.
SHORT_KEYS: Mapping[str, str] = {
    "model": "model.name",
    "init": "model.init",
    "train_only": "model.train_only",
    "data": "data.spec",
    "teacher": "teacher.model",
    "lr": "optimizer.lr",
    "workers": "data.workers",
    "devices": "run.devices",
    "nodes": "run.nodes",
    "precision": "run.precision",
    "compile": "run.compile",
    "sharding": "run.sharding",
}
