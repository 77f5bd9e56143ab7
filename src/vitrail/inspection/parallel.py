"""How far layers depend on the one just before: r'(x + r(x)) against r'(x) (Three things, section 3.2).

Layers in sequence and the same layers side by side are equivalent where the difference is nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor

from vitrail.inspection.layers import Layer, LayerMeans, evaluating, find_layers, norms_of, watched_layers
from vitrail.models.contract import Model


@contextmanager
def watched_pairs(model: Model) -> Iterator[LayerMeans]:
    """The mean error of every residual layer over the images that pass through the model while it lasts.

    The first layer of a stage has none, nor one between whose input and the last one's tokens were inserted.
    """
    layers = find_layers(model)
    means = LayerMeans(layers)
    followers = {first: second for first, second in pairwise(layers) if first.in_class_stage == second.in_class_stage}
    before: tuple[Layer, Tensor] | None = None  # the layer that came last, and its input

    def note(layer: Layer, x: Tensor, context: Tensor | None, update: Tensor) -> None:
        nonlocal before
        if before is not None and followers.get(before[0]) is layer and before[1].shape == x.shape:
            difference = layer.update(before[1], context) - update
            means.add(layer, norms_of(difference) / norms_of(update).clamp(min=1e-30))
        before = (layer, x)

    with watched_layers(layers, note):
        yield means


def parallel_errors(model: Model, images: Tensor) -> dict[str, list[float | None]]:
    """||r'(x + r(x)) - r'(x)|| / ||r'(x + r(x))|| for every residual layer r' and the layer r before it.

    The table is that of `branch_ratios`: for each kind of r' a list from the first block to the last, with None where
    there is no layer before. It takes one forward pass in eval mode that computes the layers twice.
    """
    with evaluating(model), watched_pairs(model) as means:
        model.features(images)
    return means.results()
