"""DINO's objective: the loss, the centre, the teacher that follows, and what it says of itself (arXiv 2104.14294)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.contract import CropsBatch
from vitrail.evaluation.together import Alone, Together
from vitrail.heads.dino import CropVectors, DinoModel
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.dino.self_distillation import DinoLosses, Temperatures, dino_loss
from vitrail.tasks.dino.settings import DinoSettings
from vitrail.tasks.unlabelled.collapse import CollapseWatch

_STEPS_OF_MEAN, _LEAST_INFORMATION = 20, 1e-8  # of the information that the watch looks at


@dataclass(frozen=True)
class Course:
    """What changes from step to step: functions of the step alone."""

    settings: DinoSettings
    total_steps: int
    steps_per_epoch: int

    def teacher_temperature(self, step: int) -> float:
        """The temperature of the epoch that a step is in, which grows from epoch to epoch in the warmup."""
        settings, epoch = self.settings, step // self.steps_per_epoch
        num_epochs = settings.teacher_temperature_epochs
        if epoch >= num_epochs:
            return settings.teacher_temperature
        start, end = settings.teacher_temperature_start, settings.teacher_temperature
        return start + (end - start) * epoch / max(1, num_epochs - 1)

    def teacher_momentum(self, step: int) -> float:
        """The share of its weights that the teacher keeps after a step, by a cosine over the run."""
        start, end = self.settings.teacher_momentum, self.settings.teacher_momentum_end
        progress = min(1.0, step / self.total_steps)
        return end + (start - end) * (1.0 + math.cos(math.pi * progress)) / 2.0

    def is_frozen(self, step: int) -> bool:
        """Whether the prototypes stay as they are in a step."""
        return step < self.settings.frozen_epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Sums:
    """Sums over the images of a step, or a part of it: by these, parts and processes are one batch.

    The centre follows the mean of the teacher's answers before the softmax. These are linear in the vectors that are
    compared with the prototypes: so it is the answer to the mean of the vectors.
    """

    values: Tensor  # float64: images, rows, entropy, KL; vectors; features, their squares; answers
    dim: int  # of the vectors
    num_features: int

    @classmethod
    def of(cls, vectors: CropVectors, losses: DinoLosses) -> "Sums":
        """Those of a micro-batch."""
        num_images, num_rows = len(vectors.teacher), vectors.teacher[..., 0].numel()
        counts = torch.tensor([num_images, num_rows], dtype=torch.float64, device=losses.loss.device)
        entropy, loss = losses.teacher_entropy.double(), losses.loss.detach().double()
        told = torch.stack([entropy, loss - entropy]) * num_images
        features = functional.normalize(vectors.features.flatten(0, 1).double(), dim=1)
        taught = vectors.teacher.flatten(0, 1).double().sum(dim=0)
        parts = [counts, told, taught, features.sum(dim=0), features.square().sum(dim=0), losses.answers.double()]
        return cls(torch.cat(parts), len(taught), features.shape[1])

    @property
    def mean_vector(self) -> Tensor:
        """The mean of the teacher's vectors, [dim]."""
        return self.values[4 : 4 + self.dim] / self.values[1]

    @property
    def signals(self) -> dict[str, Tensor]:
        """What the watch for collapse looks at."""
        entropy, divergence = self.values[2:4] / self.values[0]
        sizes = [self.num_features, self.num_features, len(self.values) - 4 - self.dim - 2 * self.num_features]
        mean, square, answer = (self.values[4 + self.dim :] / self.values[1]).split(sizes)
        deviation = (square - mean.square()).clamp_min(0.0).sqrt().mean()
        information = (torch.special.entr(answer).sum() - entropy).clamp_min(0.0)
        return {
            "teacher_entropy": entropy,
            "kl": divergence,
            "information": information,
            "feature_deviation": deviation,
        }


class Dino(Objective[CropsBatch]):
    """Self-distillation for a `DinoModel`; centre and teacher move once a step, by the whole global batch."""

    is_divisible = True

    def __init__(
        self,
        settings: DinoSettings,
        *,
        course: Course,
        watch: CollapseWatch,
        world: Together | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.settings, self.course, self.watch = settings, course, watch
        self.world = Alone() if world is None else world
        self.centre = torch.zeros(settings.outputs, device=device)
        self.num_steps = 0  # that were made
        self.log_information = torch.zeros((), dtype=torch.float64, device=device)  # of the last steps, on average
        self._seen: list[Sums] = []

    def __call__(self, model: nn.Module, batch: CropsBatch) -> Losses:
        vectors = model(batch.crops)
        inner = _bare(model)
        losses = dino_loss(
            vectors.student,
            vectors.teacher,
            prototypes=inner.head.prototypes,
            teacher_prototypes=inner.teacher_head.prototypes,
            centre=self.centre,
            temperatures=Temperatures(
                self.settings.student_temperature, self.course.teacher_temperature(self.num_steps)
            ),
        )
        sums = Sums.of(vectors, losses)
        parts = {"dino": losses.loss.detach(), **{name: value.float() for name, value in sums.signals.items()}}
        return Losses(losses.loss, parts, sums)

    def note(self, seen: Any) -> None:
        """Remember the sums of a micro-batch."""
        self._seen.append(seen)

    def before_step(self, model: nn.Module) -> None:
        """Leave the prototypes as they are at first, without a step of the optimizer, its moments or its decay."""
        if self.course.is_frozen(self.num_steps):
            for parameter in _bare(model).head.prototypes.parameters():
                parameter.grad = None

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Move the centre by the answers of the step, then the teacher to the new weights, and look for collapse."""
        assert isinstance(model, DinoModel), "the bare model comes here"
        momentum = self.course.teacher_momentum(self.num_steps)
        if not self._seen:  # a step that is only measured
            model.move_teacher(momentum)
            return
        values = torch.stack([sums.values for sums in self._seen]).sum(dim=0)
        sums = replace(self._seen[0], values=self.world.sum(values))
        answer = model.teacher_head.prototypes(sums.mean_vector.to(self.centre.dtype))
        self.centre.lerp_(answer, 1.0 - self.settings.centre_momentum)
        model.move_teacher(momentum)
        self.num_steps += 1
        self.skip_step()
        self.watch.see(self._typical(sums.signals))

    def _typical(self, signals: dict[str, Tensor]) -> dict[str, Tensor]:
        """The signals with the geometric mean of the information of the last steps.

        A teacher that gives all images one answer, but not always the same, tells images apart in the few steps between
        two of them: a mean would be that of these steps alone.
        """
        found = signals["information"].clamp_min(_LEAST_INFORMATION).log()
        self.log_information.lerp_(found, 1.0 if self.num_steps == 1 else 1.0 / _STEPS_OF_MEAN)
        return {**signals, "information": self.log_information.exp()}

    def skip_step(self) -> None:
        """Forget the sums of a step."""
        self._seen.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the model, which holds the teacher."""
        return {
            "centre": self.centre,
            "num_steps": self.num_steps,
            "log_information": self.log_information,
            "watch": self.watch.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same number of outputs."""
        if type(state["num_steps"]) is not int or state["num_steps"] < 0:
            raise ValueError(f"num_steps of dino is no count: {state['num_steps']!r}")
        if state["centre"].shape != self.centre.shape:
            raise ValueError(f"the centre is of {len(state['centre'])} outputs, not of {len(self.centre)}")
        self.centre.copy_(state["centre"])
        self.log_information.copy_(state["log_information"])
        self.num_steps = state["num_steps"]
        self.watch.load_state_dict(state["watch"])
        self.skip_step()


def _bare(model: nn.Module) -> DinoModel:
    """The model inside what wraps it, for parts that no wrapper has to know of."""
    while not isinstance(model, DinoModel):
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            raise ValueError("the loss of DINO needs a DinoModel")
        model = inner
    return model
