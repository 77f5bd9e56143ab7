"""Groups of parameters that an optimizer treats alike: decay or none, the layer, and matrices inside the model."""

import re
from collections.abc import Callable
from typing import Any

import timm.models
from torch import nn

from vitrail.heads.embed import TRUNK, trunk_of
from vitrail.models.contract import Model
from vitrail.models.timm_backbone import TimmBackbone

HIDDEN = "decay.hidden"


def parameter_groups(
    model: Model,
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
    layer_of, num_layers = layers_of(model) if layer_decay < 1.0 else (lambda name: 0, 1)
    undecayed = undecayed_names(model)
    width = max(2, len(str(num_layers - 1)))  # of the numbers in names, so that they sort
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        layer, is_decayed = layer_of(name), name not in undecayed
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


def hidden_weights(model: Model, *, axes: tuple[int, ...]) -> Callable[[str, nn.Parameter], bool]:
    """Whether a parameter is a weight of so many axes between the stem and the head."""
    layer_of, num_layers = layers_of(model)
    return lambda name, parameter: parameter.ndim in axes and 0 < layer_of(name) < num_layers - 1


def undecayed_names(model: Model) -> set[str]:
    """Parameters that no decay may pull to zero: norms, biases, tokens, positions, LayerScale and scalar gates.

    All but tokens and positions are single numbers or one vector; timm writes some vectors with axes of length one,
    and names its tokens and positions itself.
    """
    names = {name for name, parameter in model.named_parameters() if is_vector(parameter) or _is_token(name)}
    trunk = trunk_of(model)
    if isinstance(trunk, TimmBackbone) and hasattr(trunk.backbone, "no_weight_decay"):
        prefix = "" if trunk is model else TRUNK
        names |= {f"{prefix}backbone.{name}" for name in trunk.backbone.no_weight_decay()}
    return names


def is_vector(parameter: nn.Parameter) -> bool:
    """Whether a parameter is a number or a vector, also as [1, 1, dim]; a matrix of one row is none."""
    return parameter.ndim <= 1 or (parameter.ndim >= 3 and max(parameter.shape) == parameter.numel())


def _is_token(name: str) -> bool:
    *path, last = name.split(".")
    return last == "tokens" or path[-1:] == ["positions"]


def layers_of(model: Model) -> tuple[Callable[[str], int], int]:
    """From a parameter's name to its layer, and the number of layers, for layer-wise decay.

    Layer 0 is the stem with the tokens and positions that enter there; then every block of the trunk and of the class
    stage is one; the last layer is the final norm and the head. timm's models are divided as timm divides them.
    """
    trunk = trunk_of(model)
    if trunk is not model:  # what stands on the trunk learns at the rate of its last layer
        layer_of_trunk, num_layers = layers_of(trunk)
        return (
            lambda name: layer_of_trunk(name.removeprefix(TRUNK)) if name.startswith(TRUNK) else num_layers - 1
        ), num_layers
    names = [name for name, _ in model.named_parameters()]
    own: dict[str, int] = {}
    if isinstance(model, TimmBackbone):
        own = {f"backbone.{name}": layer for name, layer in timm_layers(model).items()}
        num_below = max(own.values()) + 1
        if model.config.has_own_classifier:
            return own.__getitem__, num_below
    else:
        num_below = 1 + _count_blocks(names, "blocks")
    head = num_below + _count_blocks(names, "class_stage.blocks")

    def layer_of(name: str) -> int:
        if name in own:
            return own[name]
        if name.startswith(("stem.", "positions.")) or name == "tokens":
            return 0
        if name == "class_stage.tokens":
            return num_below
        if block := re.match(r"blocks\.(\d+)\.", name):
            return 1 + int(block[1])
        if block := re.match(r"class_stage\.blocks\.(\d+)\.", name):
            return num_below + int(block[1])
        return head

    return layer_of, head + 1


def timm_layers(model: TimmBackbone) -> dict[str, int]:
    """The layer of every parameter of timm's model, by timm's own names."""
    if not hasattr(model.backbone, "group_matcher"):
        raise ValueError(f"timm/{model.config.timm_name} does not tell its layers: layer_decay and Muon need them")
    return timm.models.group_parameters(model.backbone, model.backbone.group_matcher(coarse=False), reverse=True)


def _count_blocks(names: list[str], prefix: str) -> int:
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.")
    return 1 + max((int(found[1]) for name in names if (found := pattern.match(name))), default=-1)
