"""Training on labels: cross-entropy, and binary cross-entropy with the papers' mixup targets (thesis 6.2.1)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.contract import ImageBatch
from vitrail.tasks.contract import Losses, Objective

LOSSES = ("cross_entropy", "bce")
HEADS = ("joint", "each")


@dataclass(frozen=True, kw_only=True)
class Supervised(Objective[ImageBatch]):
    """The loss of a classifier on class indices [batch] or on targets [batch, classes].

    Both losses are means over the batch, never over the weights of its classes, so that the mean of equal parts of a
    batch (micro-batches, ranks) is the loss of the whole.
    """

    is_divisible: ClassVar[bool] = True

    # One of LOSSES, images with several classes need "bce"; or a user's own, from logits and targets to a number.
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy"
    smoothing: float = 0.0  # label smoothing: applied to class indices; targets [batch, classes] already carry it
    class_weights: tuple[float, ...] | None = None  # weight of each class's images, see balance_weights
    # Of a model with two heads: "joint", their mean learns; or "each" by itself, the control of thesis 3.3 whose second
    # token is a second class token, not a distillation token.
    heads: str = "joint"

    def __post_init__(self) -> None:
        if callable(self.loss):
            if self.class_weights is not None:
                raise ValueError("a loss of one's own takes no class weights: leave objective.class_weights out")
        elif self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, not {self.loss!r}")
        if self.heads not in HEADS:
            raise ValueError(f"heads must be one of {', '.join(HEADS)}, not {self.heads!r}")
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing must be in [0, 1), not {self.smoothing!r}")
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))
            if not all(0.0 <= weight < math.inf for weight in self.class_weights):
                raise ValueError("class_weights must be finite numbers of at least 0, one a class")

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Losses:
        answers = self.answers(model(batch.images))
        check_targets(batch.targets, answers[0])
        total = torch.stack([self.cost(logits, batch.targets) for logits in answers]).mean()
        return Losses(total, {self.loss if isinstance(self.loss, str) else "own": total.detach()})

    def answers(self, output: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """The logits that learn the labels, one for each head or one for all."""
        if self.heads == "joint":
            return (joint_logits(output).float(),)
        if isinstance(output, Tensor):
            raise ValueError(
                "objective.heads=each needs a model with two heads: take a deit_*_distilled, or set "
                "model.settings={distilled: true}"
            )
        return tuple(logits.float() for logits in output)

    def cost(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of logits [batch, classes], a number."""
        if callable(self.loss):
            cost = self.loss(logits, targets)
            if not isinstance(cost, Tensor) or cost.ndim != 0:
                raise ValueError("a loss of one's own gives one number for a batch, a tensor without axes")
            return cost
        weights = self.weights_for(logits)
        if self.loss == "bce":
            targets = binary_targets(targets, num_classes=logits.shape[1], smoothing=self.smoothing)
            return functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights)
        return cross_entropy(logits, targets, smoothing=self.smoothing, weights=weights)

    def weights_for(self, logits: Tensor) -> Tensor | None:
        """The class weights as a tensor beside the logits [batch, classes]."""
        if self.class_weights is None:
            return None
        if len(self.class_weights) != logits.shape[1]:
            raise ValueError(f"{len(self.class_weights)} class_weights for a model of {logits.shape[1]} classes")
        return torch.tensor(self.class_weights, device=logits.device)


def joint_logits(output: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """The logits of a model; of one with a distillation token the mean of its two heads, as after training (3.3).

    Without a teacher both heads learn from the labels, through the very function that is evaluated.
    """
    if isinstance(output, Tensor):
        return output
    of_class, of_teacher = output
    return (of_class + of_teacher) / 2


def cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float, weights: Tensor | None) -> Tensor:
    """The mean over the batch; `smoothing` is for class indices, `weights` for classes."""
    if targets.ndim == 2:
        total = functional.cross_entropy(logits, targets.float(), weight=weights, reduction="sum")
    else:
        total = functional.cross_entropy(logits, targets, weight=weights, reduction="sum", label_smoothing=smoothing)
    return total / len(logits)


def binary_targets(targets: Tensor, *, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """Targets of the binary cross-entropy, [batch, classes]: every class in the picture counts in full.

    ResNet-strikes-back's choice under mixup and cutmix: a class gets target 1 where its weight is positive, however
    small. Smoothing upstream leaves `smoothing / num_classes` on every class: what lies above that is in the picture,
    and the binary targets are smoothed by the same rule, to `1 - smoothing + floor` and `floor`. A class index is a
    picture of one class that is not smoothed yet.
    """
    floor = smoothing / num_classes
    if targets.ndim == 1:
        is_present = functional.one_hot(targets, num_classes).float()
    else:
        # Mixing rounds, so a class that is not there may lie a little above its floor; without smoothing it is exact.
        is_present = (targets > (floor + 1e-6 if smoothing else 0.0)).float()
    return is_present * (1.0 - smoothing) + floor


def check_targets(targets: Tensor, logits: Tensor) -> None:
    """Refuse targets that are not [batch] class indices or [batch, classes] for these logits [batch, classes]."""
    is_index = targets.ndim == 1 and not targets.is_floating_point() and len(targets) == len(logits)
    if not is_index and targets.shape != logits.shape:
        raise ValueError(
            f"targets must be class indices [{len(logits)}] or of shape {list(logits.shape)}, "
            f"not {list(targets.shape)} of {targets.dtype}: does num_classes fit the data?"
        )


def balance_weights(counts: Sequence[int], *, beta: float | None = None) -> tuple[float, ...]:
    """A weight per class that counters imbalance, from the number of training images of each.

    By default the inverse frequency; with `beta` the inverse of the effective number (1 - beta^n) / (1 - beta) of
    Cui et al. 2019, which is gentler: 0 weighs all alike, towards 1 it becomes the inverse frequency. Scaled so that
    the average over the training images is 1 and the learning rate keeps its meaning. Classes without an image get 0.
    """
    if not counts or min(counts) < 0 or max(counts) == 0:
        raise ValueError("counts must be the number of images of each class, at least one of them positive")
    if beta is not None and not 0.0 <= beta < 1.0:
        raise ValueError(f"beta must be in [0, 1), e.g. 0.999, or None for the inverse frequency, not {beta!r}")
    raw = [0.0 if count == 0 else 1.0 / (count if beta is None else _effective_number(count, beta)) for count in counts]
    average = sum(count * weight for count, weight in zip(counts, raw, strict=True)) / sum(counts)
    return tuple(weight / average for weight in raw)


def _effective_number(count: int, beta: float) -> float:
    return (1.0 - beta**count) / (1.0 - beta)
