"""The residual layers of a model, and what flows through them while it computes as ever."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.attention import ClassAttention, SelfAttention
from vitrail.layers.mixing import ConvolutionMix, CrossPatchLinear, CrossPatchMLP, PatchConvolution
from vitrail.layers.mlp import FeedForward
from vitrail.layers.pooling import ClassLinear
from vitrail.layers.residual import Block, Branch, Residual
from vitrail.models.contract import Model

_KINDS: dict[type[nn.Module], str] = {
    SelfAttention: "self-attention",
    CrossPatchLinear: "cross-patch",
    CrossPatchMLP: "cross-patch",
    PatchConvolution: "cross-patch",
    ConvolutionMix: "convolution",
    ClassAttention: "class-attention",
    ClassLinear: "class aggregation",
    FeedForward: "feed-forward",
}


@dataclass(frozen=True, eq=False)
class Layer:
    """A residual layer x + branch(x), or several branches side by side."""

    residual: Residual
    kind: str  # what its branches do: "self-attention", "feed-forward", "class-attention", ...
    number: int  # of its block among those of its stage, from 1
    in_class_stage: bool = False  # whether it updates special tokens that look at frozen patches

    @property
    def label(self) -> str:
        """The name of the layer's block."""
        return f"{'class block' if self.in_class_stage else 'block'} {self.number}"

    @property
    def mixes(self) -> tuple[nn.Module, ...]:
        """What the layer's branches compute, without their norms and scales."""
        return tuple(branch.mix for branch in self.residual.branches if isinstance(branch, Branch))

    def update(self, x: Tensor, context: Tensor | None) -> Tensor:
        """What the branches together make of an input."""
        first, *others = self.residual.branches
        update = first(x, context)
        for branch in others:
            update = update + branch(x, context)
        return update


def find_layers(model: Model) -> tuple[Layer, ...]:
    """All residual layers of ours in the order of their use; a timm backbone has those of its pooling, if any."""
    blocks, stage = model.residual_blocks(), model.trunk.class_stage
    found = [layer for number, block in enumerate(blocks, start=1) for layer in _layers_of(block, number)]
    if stage is not None:
        for number, block in enumerate(stage.blocks, start=1):
            found += _layers_of(block, number, in_class_stage=True)
    return tuple(found)


def _layers_of(block: nn.Module, number: int, *, in_class_stage: bool = False) -> Iterator[Layer]:
    parts = (block.communication, block.feed_forward) if isinstance(block, Block) else (block,)
    for part in parts:
        if isinstance(part, Residual) and all(isinstance(branch, Branch) for branch in part.branches):
            yield Layer(part, _kind_of(part, in_class_stage=in_class_stage), number, in_class_stage)


def _kind_of(residual: Residual, *, in_class_stage: bool) -> str:
    branch = residual.branches[0]
    assert isinstance(branch, Branch)
    kind = next((name for type_, name in _KINDS.items() if isinstance(branch.mix, type_)), "other")
    return f"class {kind}" if in_class_stage and kind == "feed-forward" else kind


LayerWatcher = Callable[[Layer, Tensor, Tensor | None, Tensor], object]


@contextmanager
def watched_layers(layers: Sequence[Layer], note: LayerWatcher) -> Iterator[None]:
    """While it lasts, `note` is told after each layer what it was given (x, context) and what its branches add to x.

    The layers compute as ever. What `note` makes them compute beside is not told to it again, but it would be to
    another watcher: one that lets layers compute wants a pass of its own.
    """
    updates: dict[Layer, Tensor] = {}
    is_noting = False

    def see_branch(layer: Layer, output: Tensor) -> None:
        if not is_noting:
            updates[layer] = updates[layer] + output if layer in updates else output

    def see_layer(layer: Layer, inputs: tuple[Tensor, ...]) -> None:
        nonlocal is_noting
        if is_noting:
            return
        context = inputs[1] if len(inputs) > 1 else None
        is_noting = True
        try:
            with torch.no_grad():
                note(layer, inputs[0], context, updates.pop(layer))
        finally:
            is_noting = False

    hooks = []
    try:
        for layer in layers:
            for branch in layer.residual.branches:
                hooks.append(
                    branch.register_forward_hook(lambda _m, _i, output, layer=layer: see_branch(layer, output))
                )
            hooks.append(
                layer.residual.register_forward_hook(lambda _m, inputs, _o, layer=layer: see_layer(layer, inputs))
            )
        yield
    finally:
        for hook in hooks:
            hook.remove()


class LayerMeans:
    """Means over images of one number a layer."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._sums = dict.fromkeys(layers, 0.0)
        self._counts = dict.fromkeys(layers, 0)

    def add(self, layer: Layer, values: Tensor) -> None:
        """Count in the images of a batch, [batch]."""
        self._sums[layer] += values.double().sum().item()
        self._counts[layer] += len(values)

    def results(self) -> dict[str, list[float | None]]:
        """For each kind of layer the means from its first block to its last; None where nothing was counted."""
        means: dict[str, list[float | None]] = {}
        for layer in self._layers:
            count = self._counts[layer]
            means.setdefault(layer.kind, []).append(self._sums[layer] / count if count else None)
        return means


def norms_of(activations: Tensor) -> Tensor:
    """The norm of all activations of each image, float32 [batch]."""
    return activations.detach().float().flatten(1).norm(dim=1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode without gradients, and back after the block."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
