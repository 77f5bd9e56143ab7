"""A trunk with a linear probe as its classifier: a model like any other, to save and to predict with."""

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.evaluation.probe_data import LinearClassifier
from vitrail.layers.classifier import MlpClassifier, PerClassClassifier
from vitrail.models.contract import Model


def check_attachable(model: Model) -> None:
    """Refuse a model whose embedding is not what its classifier reads."""
    if model.trunk is not model:
        raise ValueError(
            "a probe of what a projector gives can't be saved, for it is no part of a classifier: probe features=trunk"
        )
    if model.reads_patches:
        raise ValueError(
            f"the class stage of this {model.name} has learnt nothing, and a probe of the mean of its patches is no "
            "classifier of it: leave out= away, or train one with vitrail train init=RUN"
        )


def attach_probe(model: Model, probe: LinearClassifier) -> Model:
    """A copy of the model whose logits are the probe's scores of its embedding (see `Embedder`).

    Two heads, with distillation, share the probe so that their mean is its score. Pooling tokens of single classes are
    dropped: the probe reads the mean of the patches, and so does the copy.
    """
    check_attachable(model)
    settings: dict[str, Any] = {"num_classes": len(probe.bias)}
    if isinstance(model.head, PerClassClassifier):
        settings.update(per_class_tokens=False, pool="average", num_heads=1)
    if isinstance(model.head, MlpClassifier):
        settings.update(classifier="linear")
    built = model.rebuilt(**settings)
    own, wanted = model.state_dict(), built.state_dict()
    layers = built.classifier_layers()
    is_head = {id(parameter) for layer in layers for parameter in layer.parameters()}
    head = {name for name, parameter in built.named_parameters() if id(parameter) in is_head}
    with torch.no_grad():
        for name, value in wanted.items():
            if name not in head:
                value.copy_(own[name])
        for layer, weight in zip(layers, _share(probe.weight, layers), strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(probe.bias)
    return built.eval()


def _share(weight: Tensor, layers: list[nn.Linear]) -> list[Tensor]:
    """The probe's weight for each layer: its part for a token of its own, twice because a mean is taken; or all."""
    width = sum(layer.in_features for layer in layers)
    if weight.shape[1] == width and len(layers) > 1:
        return [len(layers) * part for part in weight.split([layer.in_features for layer in layers], dim=1)]
    return [weight] * len(layers)
