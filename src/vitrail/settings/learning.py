"""How the weights are learnt: optimizer, schedule, and what keeps the model from overfitting."""

from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vitrail.settings.own import is_own
from vitrail.settings.section import Section

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from vitrail.models.contract import AnyModel
    from vitrail.training.loop.schedule import Schedules

# What the papers' optimizers take: a recipe that names one of these is read without torch.
_KNOWN = {"adamw": ("betas", "eps"), "lamb": ("betas", "eps"), "sgd": ("momentum", "nesterov"), "adagrad": ("eps",)}


class OptimizerSettings(Section):
    """Optimizer that changes the weights."""

    name: str = "adamw"
    """optimizer: adamw, lamb, sgd, adagrad, torch_muon, any of timm's (lion ...), or module:function of your own"""
    lr: PositiveFloat = 1e-3
    """the highest learning rate; for `reference_batch` images where that is given"""
    reference_batch: PositiveInt | None = None
    """batch size that lr is meant for: lr grows in proportion to the batch; null: lr holds for any batch"""
    weight_decay: NonNegativeFloat = 0.05
    """weight decay of matrices; norms, biases, tokens, positions and LayerScale have none"""
    betas: tuple[float, ...] | None = None
    """decay rates of an Adam's averages; null: the optimizer's own, 0.9 and 0.999 for adamw and lamb"""
    eps: PositiveFloat | None = None
    """number added to the divisor of an Adam's step; null: the optimizer's own, 1e-8 for adamw and 1e-6 for lamb"""
    momentum: float | None = Field(default=None, gt=0.0, lt=1.0)
    """momentum of sgd and its kin; null: 0.9, for torch_muon 0.95"""
    nesterov: bool | None = None
    """Nesterov's momentum, or the plain one, of sgd and its kin; null: Nesterov's for sgd, else the optimizer's own"""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """learning rate of each layer over that of the layer above it (layer-wise decay)"""
    clip: PositiveFloat | None = None
    """largest norm of the gradient; null: gradients are not clipped"""
    options: dict[str, Any] = Field(default_factory=dict)
    """further arguments of the optimizer, such as {amsgrad: true}"""

    @field_validator("name")
    @classmethod
    def check_name(cls, name: str) -> str:
        """Refuse a name that no optimizer has, or one that can't run here; code of one's own is not looked at yet."""
        if name not in _KNOWN and not is_own(name):
            _taken_by(name)
        return name

    @field_validator("betas", "eps", "momentum", "nesterov", "options")
    @classmethod
    def check_taken(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what the optimizer does not take."""
        name, field = info.data.get("name"), info.field_name
        if value is None or value in ((), {}) or name is None or is_own(name):
            return value
        if field == "betas" and not all(0.0 <= beta < 1.0 for beta in value):
            raise _refusal("betas must be numbers in [0, 1), such as 0.9 and 0.999")
        keys: Collection[str] = value if field == "options" else (str(field),)
        taken = _KNOWN[name] if name in _KNOWN and field != "options" else _taken_by(name, only=field == "options")
        if missing := [key for key in keys if key not in taken]:
            raise _refusal(f"{name} does not take {', '.join(missing)}; it takes {', '.join(taken) or 'nothing'}")
        if field == "betas" and len(value) != (wanted := _num_betas(name) or len(value)):
            raise _refusal(f"{name} takes {wanted} betas")
        return value

    def unused(self) -> Set[str]:
        """What the papers' other optimizers take."""
        taken = _KNOWN.get(self.name)
        return set() if taken is None else {"betas", "eps", "momentum", "nesterov"} - set(taken)

    def build(self, model: "AnyModel", *, lr: float | None = None) -> "Optimizer":
        """The optimizer of what is not frozen in a model, at this learning rate, or at that of the settings."""
        from vitrail.training.loop.optimizer import build_optimizer

        return build_optimizer(model, self, lr=self.lr if lr is None else lr)


class ScheduleSettings(Section):
    """How the learning rate and the weight decay change over the run."""

    kind: Literal["cosine", "linear", "step", "constant", "inverse_sqrt"] = "cosine"
    """course of the learning rate after the warmup"""
    warmup_epochs: NonNegativeFloat = 5.0
    """epochs in which the learning rate grows linearly; at most half of the run"""
    warmup_steps: PositiveInt | None = None
    """steps of the warmup, in place of epochs"""
    warmup_lr: NonNegativeFloat = 1e-6
    """learning rate that the warmup begins at"""
    min_lr: NonNegativeFloat = 1e-5
    """learning rate that cosine and linear end at"""
    decay_epochs: PositiveFloat | None = None
    """epochs between two decays of the kind step; null: 30"""
    decay_rate: float | None = Field(default=None, gt=0.0, le=1.0)
    """factor of each decay of the kind step; null: 0.1"""
    milestones: tuple[PositiveFloat, ...] = ()
    """epochs at which the kind step decays, in place of decay_epochs, such as [27, 33]"""
    weight_decay_end: NonNegativeFloat | None = None
    """weight decay at the end, reached by a cosine from optimizer.weight_decay; null: it is constant"""

    @field_validator("milestones")
    @classmethod
    def check_milestones(cls, milestones: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        """Refuse epochs that do not grow, or that stand beside the distance between two decays."""
        if list(milestones) != sorted(set(milestones)):
            raise PydanticCustomError("milestones", "each must be later than the one before, such as [27, 33]")
        if milestones and info.data.get("decay_epochs") is not None:
            raise PydanticCustomError("milestones", "they take the place of decay_epochs: give one of the two")
        return milestones

    def unused(self) -> Set[str]:
        """What other kinds of schedule read."""
        of_step = {"decay_epochs", "decay_rate", "milestones"} if self.kind != "step" else set()
        of_distance = {"decay_epochs"} if self.milestones else set()
        of_end = {"min_lr"} if self.kind in ("step", "constant", "inverse_sqrt") else set()
        of_warmup = {"warmup_steps"} if self.warmup_steps is None else {"warmup_epochs"}
        return of_step | of_distance | of_end | of_warmup

    def count_warmup(self, *, steps_per_epoch: int, total_steps: int) -> int:
        """Steps of the warmup; one that a short run has no room for is shortened."""
        wanted = self.warmup_steps or round(self.warmup_epochs * steps_per_epoch)
        return min(wanted, int(_MAX_WARMUP_SHARE * total_steps))

    def build(
        self, *, lr: float, steps_per_epoch: int, total_steps: int, weight_decay: float | None = None
    ) -> "Schedules":
        """The learning rate of every step, and the weight decay where it changes."""
        from vitrail.training.loop.schedule import Schedules, ValueSchedule

        is_step, is_listed = self.kind == "step", bool(self.milestones)
        rate = ValueSchedule(
            start=lr,
            end=min(self.min_lr, lr) if self.kind in ("cosine", "linear") else None,
            total_steps=total_steps,
            kind=self.kind,
            warmup_steps=self.count_warmup(steps_per_epoch=steps_per_epoch, total_steps=total_steps),
            warmup_start=min(self.warmup_lr, lr),
            decay_steps=_distance(self.decay_epochs, steps_per_epoch) if is_step and not is_listed else None,
            decay_rate=self.decay_rate if is_step else None,
            milestones=tuple(round(epoch * steps_per_epoch) for epoch in self.milestones if is_step),
        )
        if self.weight_decay_end is None or weight_decay is None:
            return Schedules(lr=rate)
        decay = ValueSchedule(start=weight_decay, end=self.weight_decay_end, total_steps=total_steps)
        return Schedules(lr=rate, weight_decay=decay)


def _distance(decay_epochs: float | None, steps_per_epoch: int) -> int:
    """Steps between two decays."""
    return max(1, round((decay_epochs or 30.0) * steps_per_epoch))


_MAX_WARMUP_SHARE = 0.5  # of a run that was made shorter than its recipe


class RegularisationSettings(Section):
    """What keeps the model from overfitting."""

    drop_path: float | None = Field(default=None, ge=0.0, lt=1.0)
    """rate of stochastic depth; null: the model's own"""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """dropout rate of ViT and CaiT, on single numbers instead of whole branches; null: the model's own, none"""
    ema: float | None = Field(default=None, gt=0.0, lt=1.0)
    """decay of the moving average of the weights, which is then what is evaluated and saved"""
    average_last: int = Field(default=1, ge=1, le=100)
    """evaluations whose weights are averaged when the run ends, which is then what is measured and saved; 1: none"""
    early_stop: PositiveInt | None = None
    """epochs without a better result on val after which the run stops"""

    @model_validator(mode="after")
    def check_averages(self) -> "RegularisationSettings":
        """Refuse two averages of the weights at once."""
        if self.ema is not None and self.average_last > 1:
            raise PydanticCustomError("two_averages", "ema and average_last are two averages: leave one out")
        return self


def _taken_by(name: str, *, only: bool = False) -> list[str]:
    """What the optimizer of that name takes; `only` what has no key of its own in the settings."""
    from vitrail.training.loop.optimizer import find_optimizer

    try:
        taken = find_optimizer(name).takes
    except ValueError as error:
        raise _refusal(str(error)) from None
    return [key for key in taken if not (only and key in OptimizerSettings.model_fields)]


def _num_betas(name: str) -> int | None:
    if name in _KNOWN:
        return 2
    from vitrail.training.loop.optimizer import find_optimizer

    return find_optimizer(name).num_betas


def _refusal(reason: str) -> PydanticCustomError:
    return PydanticCustomError("optimizer", "{reason}", {"reason": reason})
