"""The exponential moving average of a model's weights, kept in float32 and put into the model to evaluate it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage:
    """average <- decay * average + (1 - decay) * weights, after every step; buffers are copied as they are.

    Frozen parameters have no average: they stay what they are, bit by bit.

    With `warmup` the decay of the n-th update is at most n / (9 + n), so that an average of few updates
    is not mostly the initial weights. Averages of floating-point parameters are float32 whatever the model is.
    """

    def __init__(self, model: nn.Module, *, decay: float, warmup: bool = False) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"the decay of the moving average must be in [0, 1), e.g. 0.9999, not {decay!r}")
        self.decay, self.warmup = decay, warmup
        self.num_updates = 0
        with torch.no_grad():
            self.weights = {name: value.detach().float().clone() for name, value in _learning(model)}
            self.buffers = {name: value.detach().clone() for name, value in model.named_buffers()}

    @torch.no_grad()
    def update(self, model: nn.Module, *, where: Tensor | None = None) -> None:
        """Take in the weights as they are now.

        Where `where`, a bool on the device, is false nothing changes; it is counted all the same, until `take_back`.
        """
        self.num_updates += 1
        averages, weights = list(self.weights.values()), [value.detach().float() for _, value in _learning(model)]
        if weights and where is not None:
            changes = torch._foreach_sub(weights, averages)
            torch._foreach_mul_(changes, where * (1.0 - self.current_decay))
            torch._foreach_add_(averages, changes)
        elif weights:
            get_ema_multi_avg_fn(self.current_decay)(averages, weights, self.num_updates)
        for buffer, now in zip(self.buffers.values(), model.buffers(), strict=True):
            buffer.copy_(now if where is None else torch.where(where, now, buffer))

    def take_back(self) -> None:
        """Count the last update no longer: it changed nothing."""
        self.num_updates -= 1

    @property
    def current_decay(self) -> float:
        """The decay of the latest update."""
        return min(self.decay, self.num_updates / (9 + self.num_updates)) if self.warmup else self.decay

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Make the averages the weights of a model of the same names and shapes."""
        for name, value in (*_learning(model), *model.named_buffers()):
            value.copy_(self.weights[name] if name in self.weights else self.buffers[name])

    @contextlib.contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """The model with the averages for weights inside the block; its own come back after it, bit by bit."""
        tensors = [*model.parameters(), *model.buffers()]
        own = [value.detach().clone() for value in tensors]
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for value, saved in zip(tensors, own, strict=True):
                    value.copy_(saved)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"num_updates": self.num_updates, "weights": dict(self.weights), "buffers": dict(self.buffers)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same model; the averages stay on their device."""
        if type(state["num_updates"]) is not int or state["num_updates"] < 0:
            raise ValueError(f"num_updates of the moving average is no count: {state['num_updates']!r}")
        for own, kept in ((self.weights, state["weights"]), (self.buffers, state["buffers"])):
            check_same_shapes(own, kept)
        for own, kept in ((self.weights, state["weights"]), (self.buffers, state["buffers"])):
            for name, value in own.items():
                value.copy_(kept[name])
        self.num_updates = state["num_updates"]


def _learning(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are not frozen."""
    return [(name, value) for name, value in model.named_parameters() if value.requires_grad]


def check_same_shapes(own: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Refuse averages of another model, naming the first that does not fit."""
    for name in (*own, *kept):
        if name not in own or name not in kept or own[name].shape != kept[name].shape:
            shapes = [list(side[name].shape) if name in side else "none" for side in (kept, own)]
            raise ValueError(
                f"the moving average is of another model: {name} is {shapes[0]} in the checkpoint and {shapes[1]} here"
            )
