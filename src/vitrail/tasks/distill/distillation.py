"""Learning from a teacher too: soft and hard distillation, and the distillation token (thesis 3.3, eq. 3.2 and 3.3)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.blend import Normalize
from vitrail.data.contract import ImageBatch
from vitrail.tasks.classify.supervised import Supervised, check_targets, joint_logits
from vitrail.tasks.contract import Losses, Objective

Kind = Literal["soft", "hard", "token"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# The part of the loss that is the teacher's: lambda of eq. 3.2, one half in eq. 3.3.
WEIGHTS: dict[Kind, float] = {"soft": 0.1, "hard": 0.5, "token": 0.5}


@dataclass(frozen=True, kw_only=True)
class Distillation(Objective[ImageBatch]):
    """The loss of a student: what the labels cost and what differing from the teacher costs.

    soft: (1 - weight) L(Z, y) + weight t^2 KL(softmax(Z_teacher / t) || softmax(Z / t))
    hard: (1 - weight) L(Z, y) + weight L(Z, argmax Z_teacher)
    token: as hard, but the teacher's label is learnt by the distillation head: L(Z', argmax Z_teacher)

    L is the loss on labels, cross-entropy or binary cross-entropy; the teacher's labels are not smoothed. A batch that
    carries `answers` is not shown to the teacher.
    """

    supervised: Supervised
    kind: Kind = "hard"
    temperature: float = 3.0  # t, of soft
    weight: float | None = None  # of the teacher; None: 0.1 for soft, 0.5 for hard and token
    teacher: Callable[[Tensor], Tensor] | None = None  # images of 0 ... 1 to logits; None: batches carry answers
    normalize: Normalize = field(default_factory=Normalize)  # how the student's images were made

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind of distillation must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.weight is not None and not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"the weight of the teacher must be between 0 and 1, not {self.weight!r}")
        if self.temperature <= 0.0:
            raise ValueError(f"the temperature must be above 0, not {self.temperature!r}")

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Losses:
        answers = self.ask(batch.images) if batch.answers is None else batch.answers
        of_class, of_teacher = self._heads(model(batch.images))
        check_targets(batch.targets, of_class)
        labels = self.supervised.cost(of_class, batch.targets)
        if self.kind == "soft":
            teacher = soft_loss(of_teacher, answers, temperature=self.temperature)
        else:
            teacher = replace(self.supervised, smoothing=0.0, class_weights=None).cost(of_teacher, answers)
        weight = WEIGHTS[self.kind] if self.weight is None else self.weight
        total = (1.0 - weight) * labels + weight * teacher
        return Losses(total, {"labels": labels.detach(), "teacher": teacher.detach()})

    def ask(self, images: Tensor) -> Tensor:
        """The teacher's answers [batch, classes] to the student's images, as `soften` makes them."""
        if self.teacher is None:
            raise ValueError("there is no teacher to ask, and the batch carries no answers")
        return self.soften(self.teacher(restore(images, self.normalize)))

    def soften(self, logits: Tensor) -> Tensor:
        """What the student is to answer, from the teacher's logits: probabilities at the temperature, or one class."""
        if self.kind == "soft":
            return (logits.float() / self.temperature).softmax(dim=-1)
        return functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()

    def _heads(self, output: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The logits that learn from labels and those that learn from the teacher."""
        if self.kind != "token":
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
