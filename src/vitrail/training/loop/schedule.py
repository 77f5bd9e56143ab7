"""Values as functions of the step alone, so that a run that is resumed needs no state for them.

The learning rate and the weight decay are set by the loop. An objective makes a `ValueSchedule` of its own settings for
whatever else goes from one value to another: the momentum of a moving teacher, a temperature.
"""

import math
from dataclasses import dataclass

import torch

KINDS = ("cosine", "linear", "step", "constant", "inverse_sqrt")


@dataclass(frozen=True, kw_only=True)
class ValueSchedule:
    """A value for each step: linear warmup to `start`, then one of KINDS. Steps count from 0 to total_steps - 1."""

    start: float  # after the warmup
    total_steps: int
    end: float | None = None  # where "cosine" and "linear" arrive, at total_steps; None: 0
    kind: str = "cosine"
    warmup_steps: int = 0
    warmup_start: float = 0.0  # at step 0, where there is a warmup
    decay_steps: int | None = None  # "step": every so many steps, counted from step 0 ...
    decay_rate: float | None = None  # ... the value is multiplied by this; None: 0.1
    milestones: tuple[int, ...] = ()  # "step": or at these steps

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"schedule must be one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("start", "warmup_start", "end"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} of a schedule must be a finite number, not {value!r}")
        if self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, not {self.total_steps}")
        if not 0 <= self.warmup_steps < self.total_steps:
            raise ValueError(
                f"warmup_steps must be fewer than the {self.total_steps} steps of the run, not {self.warmup_steps}: "
                "shorten the warmup or train for longer"
            )
        if self.kind not in ("cosine", "linear") and self.end is not None:
            raise ValueError(f"schedules cosine and linear have an end: leave it out of {self.kind!r}")
        if self.kind == "step":
            if not self.milestones and (self.decay_steps is None or self.decay_steps < 1):
                raise ValueError("schedule 'step' needs decay_steps of at least 1: the steps between two decays")
            if self.decay_rate is not None and not 0.0 < self.decay_rate <= 1.0:
                raise ValueError(f"decay_rate must be above 0 and at most 1, not {self.decay_rate!r}")
        elif self.decay_steps is not None or self.decay_rate is not None or self.milestones:
            raise ValueError(
                f"decay_steps, decay_rate and milestones are settings of schedule 'step', not of {self.kind!r}"
            )

    def at(self, step: int) -> float:
        """The value of a step; after the last one it stays where it ended."""
        if step < 0:
            raise ValueError(f"steps count from 0, there is no step {step}")
        if step < self.warmup_steps:
            return self.warmup_start + (self.start - self.warmup_start) * step / self.warmup_steps
        if self.kind == "step":
            rate = 0.1 if self.decay_rate is None else self.decay_rate
            return self.start * rate ** self._count_decays(min(step, self.total_steps - 1))
        if self.kind == "constant":
            return self.start
        if self.kind == "inverse_sqrt":  # from its highest value at the end of the warmup on (Vaswani et al. 2017)
            return self.start * math.sqrt(max(1, self.warmup_steps) / max(1, min(step, self.total_steps - 1)))
        progress = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        end = self.end or 0.0
        left = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return end + (self.start - end) * left

    def _count_decays(self, step: int) -> int:
        if self.milestones:
            return sum(step >= milestone for milestone in self.milestones)
        assert self.decay_steps is not None
        return step // self.decay_steps


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """What the loop sets before every step."""

    lr: ValueSchedule  # of the head; groups of lower layers follow by their `lr_scale`
    weight_decay: ValueSchedule | None = None  # of the groups that decay; None: as it was built


def set_schedules(optimizer: torch.optim.Optimizer, schedules: Schedules, *, step: int) -> None:
    """Give every group of parameters its learning rate and weight decay of a step; what has no decay gets none."""
    lr = schedules.lr.at(step)
    weight_decay = None if schedules.weight_decay is None else schedules.weight_decay.at(step)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
        if weight_decay is not None and not group["name"].endswith("no_decay"):
            group["weight_decay"] = weight_decay
