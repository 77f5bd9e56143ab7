"""How big a model is: parameters and multiply-adds, counted without computing anything."""

from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from vitrail.models.config import height_and_width
from vitrail.models.contract import Model


class Complexity(NamedTuple):
    """Size of a model at one resolution."""

    parameters: int
    multiply_adds: int  # of one image; what the papers call FLOPs


class _Whole(nn.Module):
    """A model whose forward pass is the whole of it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model.forward_whole(images)


def complexity(model: Model, *, image_size: int | tuple[int, int] | None = None) -> Complexity:
    """Parameters of the model and multiply-adds of one image at its resolution, or at `image_size`.

    The model runs on the meta device, so even the largest takes no memory and little time.
    """
    if not isinstance(model, Model):
        raise ValueError(f"complexity takes a model made by create_model or load_model, not {type(model).__name__}")
    if model.is_folded:
        raise ValueError("complexity counts a model as its paper does: give it the one that was folded")
    height, width = height_and_width(model.image_size if image_size is None else image_size)
    whole = _Whole(model)
    state = {name: torch.empty_like(value, device="meta") for name, value in _tensors(whole)}
    dtype = next(model.parameters()).dtype
    images = torch.empty(1, model.config.in_channels, height, width, dtype=dtype, device="meta")
    modes = [(module, module.training) for module in whole.modules()]
    whole.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            functional_call(whole, state, (images,))
    finally:
        for module, mode in modes:
            module.training = mode
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Complexity(parameters, counter.get_total_flops() // 2)


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]
