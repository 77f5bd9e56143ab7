"""How the weights move: optimizer, schedule, and what keeps them from learning by heart."""

from collections.abc import Set
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from vitrail.settings.section import Section


class OptimizerSettings(Section):
    """How the weights move."""

    name: Literal["adamw", "lamb", "sgd"] = "adamw"
    """the optimizer"""
    lr: PositiveFloat = 1e-3
    """the highest learning rate; for `reference_batch` images where that is given"""
    reference_batch: PositiveInt | None = None
    """batch for which lr is meant: it grows in proportion to the batch; null: lr holds for any batch"""
    weight_decay: NonNegativeFloat = 0.05
    """of matrices; norms, biases, tokens, positions and LayerScale have none"""
    betas: tuple[float, float] | None = None
    """of adamw and lamb; null: 0.9 and 0.999"""
    eps: PositiveFloat | None = None
    """of adamw and lamb; null: 1e-8 and 1e-6"""
    momentum: float | None = None
    """of sgd, with Nesterov; null: 0.9"""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """each layer learns at this times the rate of the one above it"""
    clip: PositiveFloat | None = None
    """largest norm of the gradient"""


class ScheduleSettings(Section):
    """How the learning rate goes."""

    kind: Literal["cosine", "step", "constant"] = "cosine"
    """its course after the warmup"""
    warmup_epochs: NonNegativeFloat = 5.0
    """of linear growth; at most half of the run"""
    warmup_lr: NonNegativeFloat = 1e-6
    """where the warmup begins"""
    min_lr: NonNegativeFloat = 1e-5
    """where the cosine ends"""
    decay_epochs: PositiveFloat | None = None
    """of step: epochs between two decays"""
    decay_rate: PositiveFloat | None = None
    """of step: factor of a decay; null: 0.1"""

    def unused(self) -> Set[str]:
        """What other kinds of schedule read."""
        of_step = {"decay_epochs", "decay_rate"} if self.kind != "step" else set()
        return of_step | ({"min_lr"} if self.kind != "cosine" else set())


class RegularisationSettings(Section):
    """What keeps it from learning by heart."""

    drop_path: float | None = Field(default=None, ge=0.0, lt=1.0)
    """stochastic depth; null: the model's own"""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """of ViT and CaiT: on single numbers instead of whole branches; null: the model's own, which is none"""
    ema: float | None = Field(default=None, gt=0.0, lt=1.0)
    """decay of the moving average of the weights, which is then what is evaluated and saved"""
    early_stop: PositiveInt | None = None
    """epochs without a better val accuracy after which to stop"""
