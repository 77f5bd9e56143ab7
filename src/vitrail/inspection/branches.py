"""How much each residual branch adds to what passes by it: ||g(x)|| / ||x|| (CaiT figure 4; thesis figure 3.6)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from vitrail.inspection.layers import Layer, LayerMeans, evaluating, find_layers, norms_of, watched_layers
from vitrail.models.contract import Model


@contextmanager
def watched_branches(model: Model) -> Iterator[LayerMeans]:
    """The mean ratio of every residual layer over the images that pass through the model while it lasts.

    Both norms are over all patches and tokens of an image. g(x) is all that the layer adds, with its LayerScale:
    parallel branches count together. Where a gate or a norm joins branch and shortcut, both are taken before it.
    """
    layers = find_layers(model)
    means = LayerMeans(layers)

    def note(layer: Layer, x: Tensor, _context: Tensor | None, update: Tensor) -> None:
        means.add(layer, norms_of(update) / norms_of(x).clamp(min=1e-30))

    with watched_layers(layers, note):
        yield means


def branch_ratios(model: Model, images: Tensor) -> dict[str, list[float | None]]:
    """||g(x)|| / ||x|| of every residual layer: for each kind of branch a list from the first block to the last.

    Kinds are "self-attention", "feed-forward", "class-attention", "class feed-forward", in other families
    "cross-patch", "convolution", "class aggregation". A timm backbone has none, and gives an empty table.
    It takes one forward pass in eval mode, on prepared images; the model is left as it was.
    """
    with evaluating(model), watched_branches(model) as means:
        model.features(images)
    return means.results()
