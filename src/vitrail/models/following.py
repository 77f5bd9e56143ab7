"""Gradients that are followed through the last part of a forward pass only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def following(layers: Sequence[nn.Module], *, is_input: bool) -> Iterator[dict[nn.Module, Tensor]]:
    """While it lasts, inside `no_grad`, gradients are followed from the inputs, or the outputs, of some layers on.

    Yields the tensors to differentiate by.
    """
    points: dict[nn.Module, Tensor] = {}

    def begin(layer: nn.Module, given: Tensor) -> Tensor:
        points[layer] = given if given.requires_grad else given.detach().requires_grad_()
        torch.set_grad_enabled(True)  # until the surrounding no_grad ends
        return points[layer]

    def see_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (begin(layer, inputs[0]),)

    def see_output(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return begin(layer, output)

    handles = [
        layer.register_forward_pre_hook(see_input) if is_input else layer.register_forward_hook(see_output)
        for layer in layers
    ]
    try:
        yield points
    finally:
        for handle in handles:
            handle.remove()
