"""The learning rate as a function of the step alone, so that a run that goes on needs no state for it."""

import math
from dataclasses import dataclass

KINDS = ("cosine", "step", "constant")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate per step: linear warmup to `lr`, then one of KINDS. Steps count from 0 to total_steps - 1."""

    lr: float  # the highest
    total_steps: int
    kind: str = "cosine"
    warmup_steps: int = 0
    warmup_lr: float = 0.0  # of step 0, where there is a warmup
    min_lr: float = 0.0  # where the cosine ends, at total_steps
    decay_steps: int | None = None  # "step": every so many steps, counted from step 0 ...
    decay_rate: float | None = None  # ... the rate is multiplied by this; None: 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"schedule must be one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("lr", "warmup_lr", "min_lr"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, not {getattr(self, name)!r}")
        if self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, not {self.total_steps}")
        if not 0 <= self.warmup_steps < self.total_steps:
            raise ValueError(
                f"warmup_steps must be fewer than the {self.total_steps} steps of the run, not {self.warmup_steps}: "
                "shorten the warmup or train for longer"
            )
        if self.kind != "cosine" and self.min_lr:
            raise ValueError(f"min_lr is a setting of the cosine schedule: leave it out of {self.kind!r}")
        if self.kind == "step":
            if self.decay_steps is None or self.decay_steps < 1:
                raise ValueError("schedule 'step' needs decay_steps of at least 1: the steps between two decays")
            if self.decay_rate is not None and not 0.0 < self.decay_rate <= 1.0:
                raise ValueError(f"decay_rate must be above 0 and at most 1, not {self.decay_rate!r}")
        elif self.decay_steps is not None or self.decay_rate is not None:
            raise ValueError(f"decay_steps and decay_rate are settings of schedule 'step', not of {self.kind!r}")

    def lr_at(self, step: int) -> float:
        """The learning rate of a step; after the last one it stays where it ended."""
        if step < 0:
            raise ValueError(f"steps count from 0, there is no step {step}")
        if step < self.warmup_steps:
            return self.warmup_lr + (self.lr - self.warmup_lr) * step / self.warmup_steps
        if self.kind == "cosine":
            progress = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
            return self.min_lr + (self.lr - self.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
        if self.kind == "step":
            assert self.decay_steps is not None
            rate = 0.1 if self.decay_rate is None else self.decay_rate
            return self.lr * rate ** (min(step, self.total_steps - 1) // self.decay_steps)
        return self.lr
