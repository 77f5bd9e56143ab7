"""The papers' linear classifiers on the summary tokens (thesis 3.3, 5.2.1)."""

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """One linear layer; zero classes leave the pooled embedding as it is."""

    def __init__(self, dim: int, *, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def forward(self, summary: Tensor) -> Tensor:  # [batch, tokens, dim] -> [batch, classes]
        return self.linear(summary[:, 0])


class DistilledClassifier(nn.Module):
    """A head for labels and one for the teacher's: both answers when training, their mean after (3.3).

    They read the first and the last summary token: the class and the distillation token, or one pooled token twice.
    """

    def __init__(self, dim: int, *, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        self.distilled = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def forward(self, summary: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        of_class, of_teacher = self.both(summary)
        return (of_class, of_teacher) if self.training else (of_class + of_teacher) / 2

    def both(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of each head, [batch, classes]."""
        return self.linear(summary[:, 0]), self.distilled(summary[:, -1])


class PerClassClassifier(nn.Module):
    """One linear score per class, each read from that class's own token (5.2.1)."""

    def __init__(self, dim: int, *, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        self.bias = nn.Parameter(torch.empty(num_classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, summary: Tensor) -> Tensor:  # [batch, classes, dim] -> [batch, classes]
        return (summary * self.weight).sum(dim=-1) + self.bias
