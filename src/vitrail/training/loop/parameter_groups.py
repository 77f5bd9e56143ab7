"""Groups of parameters that an optimizer treats alike: decay or none, the layer, and matrices inside the model."""

from collections.abc import Callable
from typing import Any

from torch import nn

from vitrail.models.contract import AnyModel

HIDDEN = "decay.hidden"


def parameter_groups(
    model: AnyModel,
    *,
    lr: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    is_hidden: Callable[[str, nn.Parameter], bool] | None = None,
) -> list[dict[str, Any]]:
    """Parameters that share decay and learning rate, lowest layer first, each group with a readable `name`.

    Names are "decay" and "no_decay", with layer-wise decay "layer_00.decay" and so on up to the head's layer. With
    `is_hidden`, the decayed ones of which it is true are apart, in groups named "decay.hidden".
    """
    layers = model.parameter_layers() if layer_decay < 1.0 else {}
    num_layers = 1 + max(layers.values(), default=0)
    undecayed = model.undecayed()
    width = max(2, len(str(num_layers - 1)))  # of the numbers in names, so that they sort
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        layer, is_decayed = layers.get(name, 0), name not in undecayed
        group_name = "decay" if is_decayed else "no_decay"
        if is_decayed and is_hidden is not None and is_hidden(name, parameter):
            group_name = HIDDEN
        if num_layers > 1:
            group_name = f"layer_{layer:0{width}d}.{group_name}"
        lr_scale = layer_decay ** (num_layers - 1 - layer)
        group = groups.setdefault(
            group_name,
            {
                "name": group_name,
                "params": [],
                "lr": lr * lr_scale,
                "lr_scale": lr_scale,
                "weight_decay": weight_decay if is_decayed else 0.0,
            },
        )
        group["params"].append((name, parameter))
    if not groups:
        raise ValueError("every parameter of the model is frozen: there is nothing to train")
    return [groups[name] for name in sorted(groups)]


def hidden_weights(model: AnyModel, *, axes: tuple[int, ...]) -> Callable[[str, nn.Parameter], bool]:
    """Whether a parameter is a weight of so many axes between the stem and the head."""
    layers = model.parameter_layers()
    head = max(layers.values())
    return lambda name, parameter: parameter.ndim in axes and 0 < layers[name] < head
