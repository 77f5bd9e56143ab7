"""The recipe: everything that decides a training run, as data. What a task says beside it is its own recipe's."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from vitrail.settings.data import DataSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.running import EvaluationSettings, RunSettings
from vitrail.settings.section import Section

FORMAT = 2  # of a recipe's keys; `migration` reads those before


class Recipe(Section):
    """Everything that decides a run, whatever is learnt."""

    # What the command line may say in short.
    short_keys: ClassVar[Mapping[str, str]] = {
        "model": "model.name",
        "init": "model.init",
        "train_only": "model.train_only",
        "head_start": "model.head_start",
        "data": "data.spec",
        "lr": "optimizer.lr",
        "workers": "data.workers",
        "devices": "run.devices",
        "nodes": "run.nodes",
        "precision": "run.precision",
        "compile": "run.compile",
        "sharding": "run.sharding",
    }

    # Whether what is learnt is learnt from labels.
    needs_labels: ClassVar[bool] = True

    format: Literal[2] = 2
    """version of the keys of this file"""
    name: str = "custom"
    """name of the recipe"""
    task: str = "classify"
    """what is learnt: a name of `vitrail recipes tasks`, or module:Class of your own"""
    epochs: PositiveFloat = 300.0
    """passes over the training samples"""
    steps: PositiveInt | None = None
    """number of optimizer steps, in place of epochs"""
    batch_size: PositiveInt = 1024
    """samples of one optimizer step, over all devices"""
    seed: NonNegativeInt = 0
    """seed of every random choice"""
    against: str | None = None
    """published curves to compare the run with"""
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
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
        """How many stages the run has; a recipe without stages is its own only one."""
        return max(1, len(self.stages))
