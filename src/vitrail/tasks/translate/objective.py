"""The label-smoothed cross-entropy of the next token."""

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """The mean loss of logits [number, vocabulary], and detached what it is without smoothing."""
    total = functional.cross_entropy(logits, answers, label_smoothing=smoothing)
    with torch.no_grad():
        plain = functional.cross_entropy(logits, answers) if smoothing else total.detach()
    return total, plain
