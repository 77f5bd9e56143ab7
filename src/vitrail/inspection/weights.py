"""What weights alone tell: LayerScale (CaiT eq. 4) and how sparse matrices are (thesis 4.4, figure 4.3)."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitrail.inspection.layers import Layer, find_layers
from vitrail.layers.attention import ClassAttention, SelfAttention
from vitrail.layers.mixing import ConvolutionMix, CrossPatchLinear, CrossPatchMLP
from vitrail.layers.mlp import FeedForward
from vitrail.layers.pooling import ClassLinear
from vitrail.layers.residual import LayerScale, ScalarScale
from vitrail.models.contract import Model

SMALL = 0.05  # of the greatest absolute value: what lies below counts as nothing (thesis 4.3.3, figure 4.3)


@torch.no_grad()
def scales_of(model: Model) -> list[tuple[Layer, Tensor]]:
    """The weights of LayerScale, or the one of ReZero and its kin, float32 [channels] of every layer that has them.

    Those of parallel branches are put one behind the other.
    """
    found = []
    for layer in find_layers(model):
        scales: list[Tensor] = [
            part.weight for part in layer.residual.modules() if isinstance(part, (LayerScale, ScalarScale))
        ]
        if scales:
            found.append((layer, torch.cat(scales).detach().float().cpu()))
    return found


def sparsity(matrix: Tensor) -> float:
    """The share of components whose absolute value is lower than 5 % of the greatest."""
    sizes = matrix.detach().abs()
    return (sizes < SMALL * sizes.max()).double().mean().item()


def sparsities_of(model: Model) -> dict[str, dict[Layer, float]]:
    """The sparsity of each layer's matrices by their names; with parallel branches the mean of theirs.

    A mixes patches, B and C are those of the feed-forward network (eq. 4.2 and 4.3). Attention has query, key, value
    and projection, PatchConvNet's branch the 1x1 convolutions before and after the depth-wise one.
    """
    found: dict[str, dict[Layer, float]] = {}
    for layer in find_layers(model):
        values: dict[str, list[float]] = {}
        for mix in layer.mixes:
            for name, matrix in _matrices_of(mix):
                values.setdefault(name, []).append(sparsity(matrix))
        for name, each in values.items():
            found.setdefault(name, {})[layer] = sum(each) / len(each)
    return found


def _matrices_of(mix: nn.Module) -> Iterator[tuple[str, Tensor]]:
    match mix:
        case CrossPatchLinear() | ClassLinear():
            yield "A", mix.linear.weight
        case CrossPatchMLP():
            yield "first A", mix.feed_forward.expand.weight
            yield "second A", mix.feed_forward.contract.weight
        case FeedForward():
            yield "B", mix.expand.weight
            yield "C", mix.contract.weight
        case SelfAttention():
            yield from zip(("query", "key", "value"), mix.qkv.weight.chunk(3), strict=True)
            yield "projection", mix.proj.weight
        case ClassAttention():
            layers = {"query": mix.query, "key": mix.key, "value": mix.value, "projection": mix.proj}
            yield from ((name, layer.weight) for name, layer in layers.items())
        case ConvolutionMix():
            yield "first 1x1", mix.expand.weight
            yield "last 1x1", mix.contract.weight
