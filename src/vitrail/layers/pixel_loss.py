"""Cross-entropy of logits that are upsampled to pixels, in strips: the logits of all pixels are never there at once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_NUMBERS = {"cpu": 2**21}  # logits of pixels that are there at a time, by the type of device
_OTHERWISE = 2**26


def upsampled_cross_entropy(
    logits: Tensor, masks: Tensor, *, weights: Tensor | None = None, ignored: int = 255
) -> Tensor:
    """The sum over labelled pixels divided by all, of bilinearly upsampled logits [batch, classes, rows, columns].

    Masks are uint8 [batch, height, width], `ignored` where a pixel has no label; `weights` [classes] multiply the loss
    of the pixels of each class.
    """
    cost: Tensor = _PixelLoss.apply(logits, masks, weights, ignored)
    return cost


class _PixelLoss(torch.autograd.Function):
    """The gradient is computed with the loss, strip by strip, and kept on the coarse grid of the logits."""

    @staticmethod
    @torch.autocast("cuda", enabled=False)
    def forward(context: Any, logits: Tensor, masks: Tensor, weights: Tensor | None, ignored: int) -> Tensor:
        height, width = masks.shape[1:]
        num_classes, num_rows = logits.shape[1:3]
        coarse = logits.detach().float()
        gradient = torch.zeros_like(coarse) if context.needs_input_grad[0] else None
        total = torch.zeros((), dtype=torch.float64, device=logits.device)
        above, below, share = _rows_of(height, num_rows, device=logits.device)
        strip = max(1, _NUMBERS.get(logits.device.type, _OTHERWISE) // (num_classes * width))
        for image, mask in enumerate(masks):
            for first in range(0, height, strip):
                rows = slice(first, first + strip)
                upper, lower, part = above[rows], below[rows], share[rows]
                narrow = torch.lerp(coarse[image].index_select(1, upper), coarse[image].index_select(1, lower), part)
                cost, slope = _judge(
                    narrow, mask[rows], weights=weights, ignored=ignored, wants_slope=gradient is not None
                )
                total += cost
                if gradient is not None and slope is not None:
                    gradient[image].index_add_(1, upper, slope * (1.0 - part))
                    gradient[image].index_add_(1, lower, slope * part)
        context.gradient = None if gradient is None else gradient.div_(masks.numel()).to(logits.dtype)
        return (total / masks.numel()).float()

    @staticmethod
    @once_differentiable
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        return (None if context.gradient is None else context.gradient * upstream), None, None, None


def _judge(
    narrow: Tensor, mask: Tensor, *, weights: Tensor | None, ignored: int, wants_slope: bool
) -> tuple[Tensor, Tensor | None]:
    """The cost of rows of logits [classes, rows, columns] at pixels [rows, width], and its slope by these logits."""
    num_classes, num_rows, num_columns = narrow.shape
    wide = functional.interpolate(narrow[None], size=(num_rows, mask.shape[1]), mode="bilinear", align_corners=False)[0]
    is_known = mask != ignored
    target = torch.where(is_known, mask, 0).long()[None]
    worth = is_known if weights is None else is_known * weights[target[0]]
    logarithms = wide.log_softmax(dim=0)
    cost = -(logarithms.gather(0, target)[0] * worth).sum(dtype=torch.float64)
    if not wants_slope:
        return cost, None
    slope = logarithms.exp_()
    slope.scatter_add_(0, target, torch.full_like(target, -1.0, dtype=slope.dtype))
    slope *= worth
    back = torch.ops.aten.upsample_bilinear2d_backward(
        slope[None], (num_rows, mask.shape[1]), (1, num_classes, num_rows, num_columns), False, None, None
    )
    return cost, back[0]


def _rows_of(height: int, num_rows: int, *, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of pixels the rows of the grid above and below it, and the share [rows, 1] of the lower one."""
    pixels = torch.arange(height, device=device, dtype=torch.float64)
    places = ((pixels + 0.5) * (num_rows / height) - 0.5).clamp(0.0, num_rows - 1.0)
    above = places.floor().long()
    return above, (above + 1).clamp_max(num_rows - 1), (places - above).float()[:, None]
