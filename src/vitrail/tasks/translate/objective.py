"""The label-smoothed cross-entropy of the next token."""

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.tasks.contract import Losses, Objective
from vitrail.translation.token_batches import TokenBatch


class NextToken(Objective[TokenBatch]):
    """Mean over the tokens of a micro-batch; the loop weighs it by its share of the tokens of the step."""

    is_divisible = True

    def __init__(self, *, smoothing: float) -> None:
        self.smoothing = smoothing

    def __call__(self, model: nn.Module, batch: TokenBatch) -> Losses:
        """Judge the answers for every token that is no padding."""
        logits = model(batch.source, batch.lengths, batch.target, batch.places)
        with torch.autocast(logits.device.type, enabled=False):
            total, plain = smoothed_loss(logits.float(), batch.answers, smoothing=self.smoothing)
        return Losses(total, {"smoothed": total.detach(), "plain": plain})


def smoothed_loss(logits: Tensor, answers: Tensor, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """The mean loss of logits [number, vocabulary], and, without a gradient, what it is without smoothing."""
    total, plain = _SmoothedLoss.apply(logits, answers, smoothing)
    return total, plain


class _SmoothedLoss(torch.autograd.Function):
    """Cross-entropy of (1 - smoothing) of the answer and the rest spread evenly, in few passes over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, answers: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        total = torch.logsumexp(logits, dim=1)
        plain = (total - logits.gather(1, answers[:, None])[:, 0]).mean()
        ctx.save_for_backward(logits, answers)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(plain)
        if not smoothing:
            return plain.clone(), plain
        spread = (total - logits.mean(dim=1)).mean()
        return (1.0 - smoothing) * plain + smoothing * spread, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, answers = ctx.saved_tensors
        factor = gradients[0] / len(logits)
        update = torch.softmax(logits, dim=1).sub_(ctx.smoothing / logits.shape[1])
        rest = update.new_full((len(answers), 1), ctx.smoothing - 1.0)
        return update.scatter_add_(1, answers[:, None], rest).mul_(factor), None, None
