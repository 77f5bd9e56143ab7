"""Maps by gradients, for every model: what each patch adds to the score of a class in the step that pools patches.

Where special tokens pool by attention, in the last block of a ViT or in a class-attention stage, a patch adds its
value times its attention, of which the gradient tells the effect on the score. Elsewhere it is the patch itself, in
the last map, times the gradient at it. With average pooling these are exactly the parts of the score: they sum to it,
less the classifier's bias (class activation maps, arXiv 1512.04150). Of a dense model it is the maps that its head
reads, at all levels together.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.explain.attention_rows import (
    Attention,
    Gaze,
    attention_rows,
    attention_values,
    find_gaze,
    record,
    run,
)
from vitrail.layers.attention import split_heads
from vitrail.models.contract import Model, PoolingPass
from vitrail.models.following import following
from vitrail.models.vit import VisionTransformer


class GradientPass(ABC):
    """A forward pass of which the last part can be differentiated: maps of any classes follow from it."""

    logits: Tensor
    shares: Tensor | None = None  # what a model of parts of an image says of classes: see PoolingPass

    def maps(self, classes: Tensor) -> Tensor:
        """Maps [batch, classes, height, width] of class indices [batch, classes]."""
        found = []
        with torch.inference_mode(mode=False), torch.no_grad():
            for column in classes.clone().unbind(dim=1):
                with torch.enable_grad():
                    score = self.logits.gather(1, column[:, None]).sum()
                found.append(self.map_of(score, column))
        return torch.stack(found, dim=1)

    @abstractmethod
    def map_of(self, score: Tensor, classes: Tensor) -> Tensor:
        """Maps [batch, height, width] of the sum of all images' scores, each for its class [batch]."""


def run_for_gradients(model: Model, images: Tensor) -> GradientPass:
    """The model's forward pass; gradients are followed through its pooling only, and cost nothing before."""
    with torch.inference_mode(mode=False), torch.no_grad():  # in inference mode nothing can be differentiated
        images = images.clone() if images.is_inference() else images
        gaze = None if model.is_dense else find_gaze(model)
        if gaze is not None:
            return _AttentionPass(model, images, gaze)
        return _MapPass(model.pooling_pass(images))


class _MapPass(GradientPass):
    """What each patch of the last map adds."""

    def __init__(self, done: PoolingPass) -> None:
        self.logits, self.shares = done.logits, done.shares
        self.done = done

    def map_of(self, score: Tensor, classes: Tensor) -> Tensor:
        patches = self.done.patches
        (gradient,) = torch.autograd.grad(score, patches, retain_graph=True)
        return self.done.to_map((gradient * patches).detach().float())


class _Inputs(NamedTuple):
    """What went into an attention layer."""

    attention: Attention
    tokens: Tensor
    context: Tensor | None


class _AttentionPass(GradientPass):
    """What each patch adds through the attention of the special tokens: its value, times the attention to it."""

    def __init__(self, model: Model, images: Tensor, gaze: Gaze) -> None:
        is_vit = isinstance(model, VisionTransformer)
        layers = [gaze.shown_layer] if is_vit else list(gaze.layers)  # of a ViT the last pools, the others prepare
        attentions = [attention for index in layers for attention in gaze.layers[index]]
        self.is_per_class = gaze.is_per_class
        with (
            record(attentions, _Inputs) as self.inputs,
            following([attention.proj for attention in attentions], is_input=True) as self.points,
        ):
            self.logits, self.grid = run(model, images)

    def map_of(self, score: Tensor, classes: Tensor) -> Tensor:
        gradients = torch.autograd.grad(score, list(self.points.values()), retain_graph=True)
        return torch.stack(
            [self._add_up(inputs, own, classes) for inputs, own in zip(self.inputs.values(), gradients, strict=True)]
        ).sum(dim=0)

    def _add_up(self, inputs: _Inputs, gradient: Tensor, classes: Tensor) -> Tensor:
        """One layer's part of the map; the gradient is that of what its heads have gathered, [batch, tokens, dim]."""
        rows: slice | Tensor = slice(0, gradient.shape[1])
        if self.is_per_class:  # the score depends on the token of its class alone
            rows = classes[:, None]
            gradient = gradient.gather(1, rows[:, :, None].expand(-1, -1, gradient.shape[2]))
        attention = attention_rows(*inputs, rows=rows)
        per_head = split_heads(gradient, inputs.attention.num_heads).float()  # [batch, heads, tokens, head_dim]
        effects = per_head @ attention_values(*inputs).transpose(-2, -1)  # [batch, heads, tokens, keys]
        parts = (attention * effects).sum(dim=(1, 2)).detach()
        return parts[:, parts.shape[1] - self.grid[0] * self.grid[1] :].unflatten(1, self.grid)
