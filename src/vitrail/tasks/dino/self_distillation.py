"""DINO's loss: what the student says of every crop against what the teacher says of the others (arXiv 2104.14294, 3.1).

The answers are as wide as there are prototypes, 65,536 in the paper, and there is one for every crop. They are computed
for some images at a time together with their gradient: no tensor of that width is kept for the backward pass.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitrail.heads.dino import Prototypes

# Numbers of a tensor of answers: on a CPU as many as its cache holds, elsewhere as many as keep the device busy.
_NUMBERS_AT_ONCE_ON_CPU, _NUMBERS_AT_ONCE = 2**22, 2**26
_ROWS_AT_ONCE = 4096  # of the prototypes


class Temperatures(NamedTuple):
    """What the answers are divided by before the softmax: smaller ones sharpen them."""

    student: float
    teacher: float


class DinoLosses(NamedTuple):
    """What a batch costs, and what the teacher's answers are like."""

    loss: Tensor  # mean cross-entropy over the images and the pairs of a global crop of the teacher and another crop
    teacher_entropy: Tensor  # mean entropy of the teacher's answers, which the loss can't fall below
    answers: Tensor  # [outputs]: the sum of the teacher's answers


def dino_loss(
    student: Tensor,  # [batch, crops, dim], of length 1, the two global crops first
    teacher: Tensor,  # [batch, 2, dim]
    *,
    prototypes: Prototypes,
    teacher_prototypes: Prototypes,
    centre: Tensor,  # [outputs]
    temperatures: Temperatures,
) -> DinoLosses:
    """Cross-entropy of the teacher's centred and sharpened answers and the student's."""
    found = _DinoLoss.apply(
        student,
        prototypes.weight,
        prototypes.gain,
        teacher,
        teacher_prototypes.weight,
        teacher_prototypes.gain,
        centre,
        temperatures,
    )
    return DinoLosses(*found)


class _DinoLoss(torch.autograd.Function):
    """The loss and its gradient, some images at a time.

    With s the student's answers over its temperature, Q the sum of the teacher's answers to the n other global crops,
    and p = softmax(s), a crop costs n log sum exp(s) - <Q, s>, of which the gradient is n p - Q.
    """

    @staticmethod
    def forward(
        context: Any,
        student: Tensor,
        weight: Tensor,
        gain: Tensor | None,
        teacher: Tensor,
        teacher_weight: Tensor,
        teacher_gain: Tensor | None,
        centre: Tensor,
        temperatures: Temperatures,
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_images, num_crops, dim = student.shape
        num_outputs = weight.shape[0]
        needs_gradient = any(context.needs_input_grad)
        wide = torch.promote_types(student.dtype, torch.float32)
        dtype = _product_type(student, otherwise=wide)
        with torch.autocast(student.device.type, enabled=False):
            lengths, teacher_lengths = _lengths(weight), _lengths(teacher_weight)
            scale = lengths.reciprocal() if gain is None else gain / lengths
            teacher_scale = teacher_lengths.reciprocal() if teacher_gain is None else teacher_gain / teacher_lengths
            rows, teacher_rows = weight.to(dtype), teacher_weight.to(dtype)
            shift = centre / temperatures.teacher
            loss, entropy = student.new_zeros((), dtype=wide), student.new_zeros((), dtype=wide)
            total = student.new_zeros(num_outputs, dtype=wide)
            of_student = torch.empty_like(student, dtype=wide) if needs_gradient else None
            of_weight: Tensor | None = None
            num_pairs = 2 * num_crops - 2
            part = 1.0 / (num_pairs * num_images)
            for images in _chunks(student, num_outputs=num_outputs):
                # The crops come first: those of one place lie side by side in memory.
                seen = student[images].transpose(0, 1).to(dtype).flatten(0, 1)
                taught = teacher[images].transpose(0, 1).to(dtype).flatten(0, 1)
                answers = _answers(taught, teacher_rows, teacher_scale / temperatures.teacher, wide).sub_(shift)
                logs = torch.log_softmax(answers, dim=1)
                targets = torch.exp(logs, out=answers)
                entropy -= _dot(targets, logs)
                total += targets.sum(dim=0)
                del logs, answers
                first, second = targets.view(2, -1, num_outputs)
                both = first + second if num_crops > 2 else None
                logs = torch.log_softmax(_answers(seen, rows, scale / temperatures.student, wide), dim=1)
                by_crop = logs.view(num_crops, -1, num_outputs)
                loss -= _dot(by_crop[0], second) + _dot(by_crop[1], first)
                if both is not None:
                    loss -= (by_crop[2:].flatten(1) @ both.flatten()).sum()
                if of_student is None:
                    continue
                gradient = logs.exp_().view(num_crops, -1, num_outputs)
                gradient[0].sub_(second)
                gradient[1].sub_(first)
                if both is not None:
                    gradient[2:].mul_(2.0).sub_(both)
                gradient.mul_(scale)
                products = gradient.flatten(0, 1).to(dtype)
                of_student[images] = (products @ rows).to(wide).view(num_crops, -1, dim).transpose(0, 1)
                if of_weight is None:
                    of_weight = (products.T @ seen).to(wide)
                elif dtype == wide:
                    of_weight.addmm_(products.T, seen)
                else:
                    of_weight += products.T @ seen
            loss, entropy = loss * part, entropy / (2 * num_images)
        # Not by save_for_backward: what it holds is copied where it becomes the gradient of a parameter.
        context.gradients, context.factor = (of_student, of_weight), part / temperatures.student
        context.save_for_backward(weight, lengths, gain)
        context.mark_non_differentiable(entropy, total)
        return loss, entropy, total

    @staticmethod
    @once_differentiable
    def backward(context: Any, of_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        weight, lengths, gain = context.saved_tensors
        of_student, of_weight = context.gradients
        context.gradients = None
        factor = of_loss * context.factor
        of_gain = _turn(of_weight, weight, lengths, gain, factor=factor)
        return of_student.mul_(factor), of_weight, of_gain, None, None, None, None, None


def _turn(of_weight: Tensor, weight: Tensor, lengths: Tensor, gain: Tensor | None, *, factor: Tensor) -> Tensor | None:
    """Scale the gradient of the rows, in place, without what would change their length; the gradient of the gain.

    In blocks that stay in a CPU's cache.
    """
    alongs = []
    blocks = (tensor.split(_ROWS_AT_ONCE) for tensor in (of_weight, weight, lengths))
    for own, rows, length in zip(*blocks, strict=True):
        along = (rows * own).sum(dim=1)
        own.addcmul_(rows, (along / length.square()).unsqueeze(1), value=-1.0).mul_(factor)
        alongs.append(along)
    return None if gain is None else torch.cat(alongs) / gain * factor


def _answers(vectors: Tensor, rows: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scaled products, [vectors, rows]."""
    return (vectors @ rows.T).to(dtype).mul_(scale)


def _lengths(weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(weight, dim=1).clamp_min(1e-12)


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return torch.dot(first.flatten(), second.flatten())


def _product_type(student: Tensor, *, otherwise: torch.dtype) -> torch.dtype:
    """bfloat16 where products are computed in it; float16 has too little room for these gradients."""
    kind = student.device.type
    is_rounded = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if is_rounded else otherwise


def _chunks(student: Tensor, *, num_outputs: int) -> list[slice]:
    num_images, num_crops, _ = student.shape
    most = _NUMBERS_AT_ONCE_ON_CPU if student.device.type == "cpu" else _NUMBERS_AT_ONCE
    size = max(1, most // (num_crops * num_outputs))
    return [slice(start, min(start + size, num_images)) for start in range(0, num_images, size)]
