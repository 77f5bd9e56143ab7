"""One step of a model in several lanes: copies that share its weights, and sums that do not depend on who computed."""

import copy
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from vitrail.evaluation.lanes import Lanes
from vitrail.layers.sample_draws import SampleDraws, give_draws
from vitrail.tasks.contract import Losses

Item = TypeVar("Item")
# Layers of timm whose draws come from torch's one generator, which lanes would take numbers from in any order.
_DRAWING = ("DropBlock2d", "PatchDropout", "PatchDropoutWithIndices")


class NormStatistics(NamedTuple):
    """What a batch normalisation has found in one batch."""

    mean: Tensor
    variance: Tensor


class Replica(NamedTuple):
    """A copy of a model for one lane."""

    model: nn.Module  # its parameters are the model's own numbers; gradients and running statistics are its own
    draws: SampleDraws
    parameters: list[nn.Parameter]
    statistics: list[list[NormStatistics]]  # of each batch normalisation those of its passes


class _Part(NamedTuple):
    """What a micro-batch leaves."""

    losses: Losses
    gradients: list[Tensor | None]  # of the parameters
    statistics: list[list[NormStatistics]]  # of each batch normalisation those of its passes


class Replicas:
    """The model in as many copies as there are lanes.

    Gradients and running statistics of micro-batches are added to the model's in the order of the micro-batches, so
    that the number of lanes changes no bit.
    """

    def __init__(self, model: nn.Module, *, lanes: Lanes) -> None:
        self.model, self.lanes = model, lanes
        self._parameters = list(model.parameters())
        self._norms = _learning_norms(model)
        self._free: SimpleQueue[Replica] = SimpleQueue()
        for _ in range(lanes.count):
            self._free.put(_make_replica(model))

    def judge(self, function: Callable[[Replica, Item], Losses], items: Iterable[Item]) -> Iterator[Losses]:
        """What each micro-batch costs, after its gradients have been added; `function` calls backward too."""

        def compute(item: Item) -> _Part:
            replica = self._free.get()
            try:
                losses = function(replica, item)
                return _Part(losses, _take_gradients(replica.parameters), _take_statistics(replica.statistics))
            finally:
                self._free.put(replica)

        for part in self.lanes.map(compute, items):
            self._add(part)
            yield part.losses

    @torch.no_grad()
    def _add(self, part: _Part) -> None:
        sums: list[Tensor] = []
        summands: list[Tensor] = []
        for parameter, gradient in zip(self._parameters, part.gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                sums.append(parameter.grad)
                summands.append(gradient)
        if sums:
            torch._foreach_add_(sums, summands)
        for norm, found in zip(self._norms, part.statistics, strict=True):
            for statistics in found:
                _follow(norm, statistics)


def draws_elsewhere(model: nn.Module) -> bool:
    """Whether a layer draws from torch's generator in training: what it draws depends on who asks first."""
    return any(
        (isinstance(layer, _DropoutNd) and layer.p > 0.0) or type(layer).__name__ in _DRAWING
        for layer in model.modules()
    )


def _learning_norms(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


def _make_replica(model: nn.Module) -> Replica:
    shared: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
        for parameter in model.parameters()
    }
    replica = copy.deepcopy(model, shared)
    statistics = [_note_statistics(norm) for norm in _learning_norms(replica)]
    return Replica(replica, give_draws(replica), list(replica.parameters()), statistics)


def _note_statistics(norm: _BatchNorm) -> list[NormStatistics]:
    """A list that from now on gets what a layer of a replica finds in each of its passes: DINO makes two of a batch."""
    norm.momentum = 1.0  # its running statistics are then those of the last batch
    found: list[NormStatistics] = []

    def note(layer: nn.Module, *_: object) -> None:
        is_again = torch._C._current_graph_task_id() != -1  # a block that is recomputed in the backward pass
        if layer.training and not is_again:
            found.append(
                NormStatistics(layer.get_buffer("running_mean").clone(), layer.get_buffer("running_var").clone())
            )

    norm.register_forward_hook(note)
    return found


def _take_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor | None]:
    gradients = []
    for parameter in parameters:
        gradients.append(parameter.grad)
        parameter.grad = None
    return gradients


def _take_statistics(found: Iterable[list[NormStatistics]]) -> list[list[NormStatistics]]:
    taken = []
    for statistics in found:
        taken.append(statistics.copy())
        statistics.clear()
    return taken


def _follow(norm: _BatchNorm, found: NormStatistics) -> None:
    """Move running statistics as the layer itself would have."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = 1.0 / norm.num_batches_tracked.item() if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(found.mean, momentum)
    norm.running_var.lerp_(found.variance, momentum)
