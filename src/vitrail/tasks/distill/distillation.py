"""Learning from a teacher too: soft and hard distillation, and the distillation token (thesis 3.3, eq. 3.2 and 3.3)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.blend import Normalize
from vitrail.data.contract import ImageBatch
from vitrail.tasks.classify.supervised import Supervised, check_targets, joint_logits
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.distill.settings import TeacherSettings


@dataclass(frozen=True, kw_only=True)
class Distillation(Objective[ImageBatch]):
    """The loss of a student: what the labels cost and what differing from the teacher costs.

    soft: (1 - weight) L(Z, y) + weight t^2 KL(softmax(Z_teacher / t) || softmax(Z / t))
    hard: (1 - weight) L(Z, y) + weight L(Z, argmax Z_teacher)
    token: as hard, but the teacher's label is learnt by the distillation head: L(Z', argmax Z_teacher)

    L is the loss on labels, cross-entropy or binary cross-entropy; the teacher's labels are not smoothed. A batch that
    carries `answers` is not shown to the teacher.
    """

    is_divisible: ClassVar[bool] = True

    supervised: Supervised
    settings: TeacherSettings = field(default_factory=TeacherSettings)  # the kind, t, and the weight of the teacher
    teacher: Callable[[Tensor], Tensor] | None = None  # images of 0 ... 1 to logits; None: batches carry answers
    normalize: Normalize = field(default_factory=Normalize)  # how the student's images were made

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Losses:
        answers = self.ask(batch.images) if batch.answers is None else batch.answers
        of_class, of_teacher = self._heads(model(batch.images))
        check_targets(batch.targets, of_class)
        labels = self.supervised.cost(of_class, batch.targets)
        if self.settings.kind == "soft":
            teacher = soft_loss(of_teacher, answers, temperature=self.settings.temperature)
        else:
            teacher = replace(self.supervised, smoothing=0.0, class_weights=None).cost(of_teacher, answers)
        weight = self.settings.share
        total = (1.0 - weight) * labels + weight * teacher
        return Losses(total, {"labels": labels.detach(), "teacher": teacher.detach()})

    def ask(self, images: Tensor) -> Tensor:
        """The teacher's answers [batch, classes] to the student's images, as `soften` makes them."""
        if self.teacher is None:
            raise ValueError("there is no teacher to ask, and the batch carries no answers")
        return self.soften(self.teacher(restore(images, self.normalize)))

    def soften(self, logits: Tensor) -> Tensor:
        """What the student is to answer, from the teacher's logits: probabilities at the temperature, or one class."""
        if self.settings.kind == "soft":
            return (logits.float() / self.settings.temperature).softmax(dim=-1)
        return functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()

    def _heads(self, output: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The logits that learn from labels and those that learn from the teacher."""
        if self.settings.kind != "token":
            logits = joint_logits(output).float()
            return logits, logits
        if isinstance(output, Tensor):
            raise ValueError("the student has no distillation head: create it with distilled=True, or use kind hard")
        of_class, of_teacher = output
        return of_class.float(), of_teacher.float()


def soft_loss(logits: Tensor, answers: Tensor, *, temperature: float) -> Tensor:
    """t^2 KL(answers || softmax(logits / t)), the mean over the batch; the answers are at the same temperature."""
    log_probabilities = (logits / temperature).log_softmax(dim=-1)
    divergence = functional.kl_div(log_probabilities, answers, reduction="sum") / len(logits)
    return temperature**2 * divergence


def restore(images: Tensor, normalize: Normalize) -> Tensor:
    """Images of 0 ... 1 from normalised ones."""
    shape = (-1, 1, 1)
    mean = torch.tensor(normalize.mean, device=images.device).view(shape)
    std = torch.tensor(normalize.std, device=images.device).view(shape)
    return torch.addcmul(mean, images.float(), std).clamp_(0.0, 1.0)
