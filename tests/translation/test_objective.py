"""The loss of the next token."""

import pytest
import torch
from torch.nn import functional

from vitrail.tasks.translate.objective import smoothed_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradient_are_those_of_label_smoothed_cross_entropy(smoothing: float) -> None:
    torch.manual_seed(0)
    logits = (3.0 * torch.randn(7, 11, dtype=torch.float64)).requires_grad_()
    answers = torch.randint(11, (7,))
    total, plain = smoothed_loss(logits, answers, smoothing=smoothing)
    wanted = functional.cross_entropy(logits, answers, label_smoothing=smoothing)
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(plain, functional.cross_entropy(logits, answers))
    assert not plain.requires_grad
    [gradient] = torch.autograd.grad(2.0 * total, logits)
    torch.testing.assert_close(gradient, torch.autograd.grad(2.0 * wanted, logits)[0])
