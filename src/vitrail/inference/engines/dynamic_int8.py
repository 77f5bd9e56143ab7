"""Linear layers in int8 for torch on a CPU: weights by channel, what comes in by token and anew in every call."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_LARGEST = 127.0


class Int8Linear(nn.Module):
    """A linear layer whose products are of bytes; what comes in and goes out is float32."""

    weight: Tensor  # int8 [in, out]
    scale: Tensor  # [out]

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        values, scale = to_bytes(layer.weight.detach().float())
        self.register_buffer("weight", values.t().contiguous())
        self.register_buffer("scale", scale.squeeze(1))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        values, scale = to_bytes(x.flatten(0, -2))
        found = torch._int_mm(values, self.weight).float() * (scale * self.scale)
        found = found if self.bias is None else found + self.bias
        return found.unflatten(0, x.shape[:-1])


def to_bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8, each by its own range, and the scales [rows, 1] that turn them back."""
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _LARGEST
    return (rows / scale).round().to(torch.int8), scale


def called_layers(model: nn.Module, images: Tensor) -> dict[str, nn.Linear]:
    """The linear layers that are called as such in a pass, by name: of others the weights are read."""
    names = {layer: name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    called: dict[str, nn.Linear] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        called[names[layer]] = layer

    handles = [layer.register_forward_hook(note) for layer in names]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return called


def rank_layers(model: nn.Module, images: Tensor) -> list[str]:
    """The layers that can be quantised, those first whose answers that changes most, for their size."""
    errors: dict[str, float] = {}
    quantised = {name: Int8Linear(layer) for name, layer in called_layers(model, images).items()}
    names = {layer: name for name, layer in model.named_modules() if name in quantised}

    def measure(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        gap = quantised[names[layer]](inputs[0]) - output
        errors[names[layer]] = float(gap.square().mean() / output.square().mean().clamp(min=1e-12))

    handles = [layer.register_forward_hook(measure) for layer in names]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return sorted(errors, key=lambda name: -errors[name])


def quantise_layers(model: nn.Module, images: Tensor, *, kept: Sequence[str]) -> None:
    """Replace the linear layers of a model that are called as such, but those that are `kept`."""
    for name in called_layers(model, images):
        if name not in kept:
            parent, _, own = name.rpartition(".")
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            setattr(model.get_submodule(parent), own, Int8Linear(layer))
