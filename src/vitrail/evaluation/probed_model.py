"""A trunk with a linear probe as its classifier: a model like any other, to save and to predict with."""

import dataclasses

import torch
from torch import Tensor, nn

from vitrail.evaluation.probe_data import LinearClassifier
from vitrail.layers.classifier import Classifier, DistilledClassifier, PerClassClassifier
from vitrail.models.build import build_model, build_timm_model
from vitrail.models.contract import Model
from vitrail.models.timm_backbone import TimmBackbone, TimmConfig


def check_attachable(model: Model) -> None:
    """Refuse a model whose embedding is not what its classifier reads."""
    if model.family == "embedding":
        raise ValueError("a probe of an embedding model can't be saved: its projector is no part of a classifier")


def attach_probe(model: Model, probe: LinearClassifier) -> Model:
    """A copy of the model whose logits are the probe's scores of its embedding (see `Embedder`).

    Two heads, with distillation, share the probe so that their mean is its score. Pooling tokens of single classes are
    dropped: the probe reads the mean of the patches, and so does the copy.
    """
    check_attachable(model)
    settings = {field.name: getattr(model.config, field.name) for field in dataclasses.fields(model.config)}
    settings["num_classes"] = len(probe.bias)
    if isinstance(model.head, PerClassClassifier):
        settings.update(per_class_tokens=False, pool="average", num_heads=1)
    if isinstance(model.config, TimmConfig):
        built = build_timm_model(settings.pop("timm_name"), **settings)
    else:
        built = build_model(model.family, name=model.name, settings=settings)
    built.preprocessing = model.preprocessing
    own, wanted = model.state_dict(), built.state_dict()
    layers = _find_layers(built)
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


def _find_layers(model: Model) -> list[nn.Linear]:
    """The linear layers that read the summary tokens."""
    head = model.head
    if isinstance(model, TimmBackbone) and isinstance(head, nn.Identity):
        classifier = model.backbone.get_classifier()
        if not isinstance(classifier, nn.Linear) or classifier.bias is None:
            raise ValueError(f"{model.name} does not end in one linear layer: a probe of it can't be saved as a model")
        return [classifier]
    assert isinstance(head, (Classifier, DistilledClassifier))
    layers = [head.linear, head.distilled] if isinstance(head, DistilledClassifier) else [head.linear]
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def _share(weight: Tensor, layers: list[nn.Linear]) -> list[Tensor]:
    """The probe's weight for each layer: its part for a token of its own, twice because a mean is taken; or all."""
    width = sum(layer.in_features for layer in layers)
    if weight.shape[1] == width and len(layers) > 1:
        return [len(layers) * part for part in weight.split([layer.in_features for layer in layers], dim=1)]
    return [weight] * len(layers)
