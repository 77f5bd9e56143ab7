"""What to say when a loss or a gradient is not a number."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.data.contract import Batch

if TYPE_CHECKING:
    from vitrail.training.stage import Stage


def describe_not_finite(stage: "Stage", loss: Tensor, norm: Tensor, batches: list[Batch]) -> str:
    """One line: the step, the tensor, the images, the last good checkpoint and what may help."""
    indices = [index for batch in batches for index in batch.indices.tolist()]
    shown = ", ".join(map(str, indices[:5])) + (" ..." if len(indices) > 5 else "")
    weights = _first_not_finite(dict(stage.model.named_parameters()))
    gradients = _first_not_finite(
        {name: value.grad for name, value in stage.model.named_parameters() if value.grad is not None}
    )
    if weights:
        where = f"the weights {weights}"
    elif gradients:
        where = f"the gradient of {gradients}"
    else:
        where = "the loss"
    newest = stage.checkpoints.newest()
    kept = f"the checkpoint {newest} is good" if newest else "there is no checkpoint yet"
    return (
        f"step {stage.step} (epoch {stage.epoch:.2f}): loss {loss.item():g}, gradient norm {norm.item():g}; first not "
        f"finite: {where}; samples {shown}; {kept}: try a lower lr, optimizer.clip=1, precision=fp32 or run.on_nan=skip"
    )


def _first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    return next((name for name, value in tensors.items() if not bool(torch.isfinite(value).all())), None)
