"""Maps by gradients, for every model: what each patch adds to the score of a class in the step that pools patches.

Where special tokens pool by attention, in the last block of a ViT or in a class-attention stage, a patch adds its
value times its attention, of which the gradient tells the effect on the score. Elsewhere it is the patch itself, in
the last map, times the gradient at it. With average pooling these are exactly the parts of the score: they sum to it,
less the classifier's bias (class activation maps, arXiv 1512.04150).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.explain.attention import (
    Attention,
    Gaze,
    attention_rows,
    attention_values,
    find_gaze,
    patch_grid,
    record,
    run,
)
from vitrail.layers.attention import split_heads
from vitrail.layers.pooling import ClassStage
from vitrail.models.contract import Model
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.models.vit import VisionTransformer


class GradientPass(ABC):
    """A forward pass of which the last part can be differentiated: maps of any classes follow from it."""

    logits: Tensor

    def maps(self, classes: Tensor) -> Tensor:
        """[batch, classes, height, width] of class indices [batch, classes]."""
        found = []
        with torch.inference_mode(mode=False), torch.no_grad():
            for column in classes.clone().unbind(dim=1):
                with torch.enable_grad():
                    score = self.logits.gather(1, column[:, None]).sum()
                found.append(self.map_of(score, column))
        return torch.stack(found, dim=1)

    @abstractmethod
    def map_of(self, score: Tensor, classes: Tensor) -> Tensor:
        """[batch, height, width] of the sum of all images' scores, each for its class [batch]."""


def run_for_gradients(model: Model, images: Tensor) -> GradientPass:
    """The model's forward pass; gradients are followed through its pooling only, and cost nothing before."""
    with torch.inference_mode(mode=False), torch.no_grad():  # in inference mode nothing can be differentiated
        images = images.clone() if images.is_inference() else images
        gaze = find_gaze(model)
        if gaze is not None:
            return _AttentionPass(model, images, gaze)
        if isinstance(model, TimmBackbone):
            return _run_timm(model, images)
        stage = getattr(model, "class_stage", None)
        layer = stage if isinstance(stage, ClassStage) else model.norm
        assert isinstance(layer, nn.Module)
        with _follow([layer], is_input=layer is stage) as points:
            logits = model(images)
    grid = patch_grid(model, images)
    return _MapPass(logits, points[layer], lambda product: product.sum(dim=-1).reshape(-1, *grid))


class _MapPass(GradientPass):
    """What each patch of the last map adds."""

    def __init__(self, logits: Tensor, patches: Tensor, shape: Callable[[Tensor], Tensor]) -> None:
        self.logits = logits
        self.patches = patches
        self.shape = shape  # something like the patches -> [batch, height, width], summed over the channels

    def map_of(self, score: Tensor, classes: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(score, self.patches, retain_graph=True)
        return self.shape((gradient * self.patches).detach().float())


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
            _follow([attention.proj for attention in attentions], is_input=True) as self.points,
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


def _run_timm(model: TimmBackbone, images: Tensor) -> GradientPass:
    """From timm's last map on, or from the input of the last block where a class token is read behind it."""

    def shape(product: Tensor) -> Tensor:
        return model.as_maps(product, images).sum(dim=1)

    backbone = model.backbone
    if getattr(backbone, "global_pool", None) == "token" and hasattr(backbone, "blocks"):
        last = backbone.blocks[-1]
        with _follow([last], is_input=True) as points:
            logits = model(images)
        return _MapPass(logits, points[last], shape)
    model.check_images(images)
    patches = backbone.forward_features(images).detach().requires_grad_()
    with torch.enable_grad():
        is_own = model.config.has_own_classifier
        logits = backbone.forward_head(patches) if is_own else model.head(model.pool(patches, None))
    return _MapPass(logits, patches, shape)


@contextmanager
def _follow(layers: Sequence[nn.Module], *, is_input: bool) -> Iterator[dict[nn.Module, Tensor]]:
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
