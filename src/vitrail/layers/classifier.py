"""The papers' classifiers on the summary tokens: linear (thesis 3.3, 5.2.1), or an MLP (2.4.6)."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """One linear layer; zero classes leave the pooled embedding as it is."""

    def __init__(self, dim: int, *, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def forward(self, summary: Tensor) -> Tensor:  # [batch, tokens, dim] -> [batch, classes]
        return self.linear(summary[:, 0])


class MlpClassifier(nn.Module):
    """Two linear layers with batch normalisation and ReLU between them (2.4.6).

    The thesis does not print the hidden width: here it is twice the embedding's, as of the probes.
    """

    def __init__(self, dim: int, *, num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, 2 * dim)
        self.norm = nn.BatchNorm1d(2 * dim)
        self.linear = nn.Linear(2 * dim, num_classes)

    def forward(self, summary: Tensor) -> Tensor:  # [batch, tokens, dim] -> [batch, classes]
        return self.linear(functional.relu(self.norm(self.hidden(summary[:, 0]))))


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


def make_classifier(
    dim: int, *, num_classes: int, kind: str = "linear", distilled: bool = False, per_class: bool = False
) -> nn.Module:
    """The classifier that fits the summary tokens; `kind` is "linear" or "mlp", of one token."""
    if per_class:
        return PerClassClassifier(dim, num_classes=num_classes)
    if distilled:
        return DistilledClassifier(dim, num_classes=num_classes)
    if kind == "mlp" and num_classes:
        return MlpClassifier(dim, num_classes=num_classes)
    return Classifier(dim, num_classes=num_classes)
