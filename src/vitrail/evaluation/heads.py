"""The separate answers of a model with a distillation head: class, distillation and joint (thesis 3.3, table 3.3)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.layers.classifier import DistilledClassifier
from vitrail.models.contract import Features, Model

HEADS = ("class", "distillation", "joint")


class SeparateHeads(Model):
    """A model whose answers are the logits of both of its heads, [batch, 2, classes], in eval mode too.

    The model's own answer in eval mode is the mean of the two, as in the official code: `logits.mean(dim=1)`. The
    thesis adds the two softmaxes instead: `head_answers(logits)["joint"]`.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model.config)
        if not model.has_two_heads:
            raise ValueError(f"{model.name or type(model).__name__} has no distillation head: it has one answer")
        self.model = model
        self.name, self.family, self.preprocessing = model.name, model.family, model.preprocessing

    def forward(self, images: Tensor) -> Tensor:
        head = self.model.head
        assert isinstance(head, DistilledClassifier)
        return torch.stack(head.both(self.model.summarize(images)), dim=1)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        return self.model.features(images, levels=levels)


def head_answers(logits: Tensor) -> dict[str, Tensor]:
    """Logits of each of HEADS, [batch, classes], from those of both heads [batch, 2, classes].

    The joint ones are the logarithm of the mean of the two softmaxes, so that their own softmax is that mean: the
    largest is that of the sum.
    """
    of_class, of_teacher = logits.unbind(dim=1)
    joint = logits.log_softmax(dim=2).logsumexp(dim=1) - math.log(2)
    return dict(zip(HEADS, (of_class, of_teacher, joint), strict=True))
