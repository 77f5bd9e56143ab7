"""Whether steps can be taken: read at once on a CPU; on a GPU decided there, and read by the host one step later."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.contract import Batch
from vitrail.tasks.contract import Objective
from vitrail.training.parallel.sharding import is_sharded

DELAYED_DEVICES = (
    "cuda",
)  # those that compute while the host goes on, and whose fused optimizers can leave out a step


class SeenStep:
    """Loss and gradient norm of a step, and what is needed to describe it should they not be finite."""

    def __init__(self, loss: Tensor, norm: Tensor, *, step: int, batches: Sequence[Batch]) -> None:
        self.step, self.batches = step, list(batches)
        self._numbers = torch.stack([loss.detach(), norm.detach().to(loss.dtype)])
        self._arrival: torch.cuda.Event | None = None

    def is_finite(self, *, with_loss: bool) -> Tensor:
        """Whether the norm, and the loss if it is asked for, is finite: a bool on the device."""
        return torch.isfinite(self._numbers if with_loss else self._numbers[1:]).all()

    def send(self) -> None:
        """Start the copy to the host without waiting for it."""
        if self._numbers.device.type == "cuda":
            host = torch.empty(2, dtype=self._numbers.dtype, pin_memory=True)
            host.copy_(self._numbers, non_blocking=True)
            self._numbers = host
            self._arrival = torch.cuda.Event()
            self._arrival.record()

    def read(self) -> tuple[float, float]:
        """Loss and norm on the host; a copy that was started is waited for."""
        if self._arrival is not None:
            self._arrival.synchronize()
        loss, norm = self._numbers.tolist()
        return loss, norm


class StepGuard:
    """The step whose numbers the host has not read yet, where it reads them later."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, objective: Objective[Any]) -> None:
        device = next(model.parameters()).device
        # A divided model's fused kernels take no flag, and what an objective does after a step it can't take back.
        self._can_delay = (
            device.type in DELAYED_DEVICES
            and not is_sharded(model)
            and type(objective).after_step is Objective.after_step
            and getattr(optimizer, "_step_supports_amp_scaling", False)
            and all(group.get("fused") for group in optimizer.param_groups)
        )
        self.optimizer = optimizer
        self.unread: SeenStep | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether the next step is decided on the device; the first is not, for it creates the optimizer's state."""
        return self._can_delay and len(self.optimizer.state) > 0

    def exchange(self, seen: SeenStep) -> SeenStep | None:
        """Send the numbers of a step on their way, and give the step before, if it has not been read."""
        seen.send()
        before, self.unread = self.unread, seen
        return before

    def take(self) -> SeenStep | None:
        """The step that has not been read, which is read now."""
        before, self.unread = self.unread, None
        return before

    def step_where(self, is_made: Tensor) -> None:
        """The optimizer's step, left out by its kernel where `is_made`, a bool on the device, is false."""
        self.optimizer.grad_scale, self.optimizer.found_inf = None, (~is_made).float()  # type: ignore[attr-defined]
        try:
            self.optimizer.step()
        finally:
            del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]


def are_finite(*numbers: float) -> bool:
    """Whether all numbers are finite."""
    return all(map(math.isfinite, numbers))
