"""Distillation: both losses by hand, where gradients go, and what the teacher is shown."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from shrunk import NUM_CLASSES, images_for, randomize, small_model
from torch import Tensor, nn

from vitrail.data.blend import Blend, Normalize
from vitrail.data.contract import ImageBatch
from vitrail.settings.images import BlendSettings
from vitrail.tasks.classify.supervised import Supervised
from vitrail.tasks.distill.distillation import Distillation
from vitrail.tasks.distill.settings import TeacherSettings

STUDENTS = ("deit_tiny", "cait_xxs24", "patchconvnet_s60", "resmlp_s12")
GREY = Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Says(nn.Module):
    """A student that answers the same whatever it sees."""

    def __init__(self, *outputs: list[list[float]]) -> None:
        super().__init__()
        self.outputs = [torch.tensor(output, requires_grad=True) for output in outputs]

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return tuple(self.outputs) if len(self.outputs) > 1 else self.outputs[0]


def teacher_saying(logits: list[list[float]]) -> Callable[[Tensor], Tensor]:
    return lambda pixels: torch.tensor(logits)


def batch_of(targets: Tensor) -> ImageBatch:
    return ImageBatch(torch.zeros(len(targets), 3, 2, 2), targets, torch.arange(len(targets)))


def distillation(
    *,
    supervised: Supervised,
    teacher: Callable[[Tensor], Tensor] | None = None,
    normalize: Normalize | None = None,
    **settings: Any,
) -> Distillation:
    return Distillation(
        supervised=supervised,
        settings=TeacherSettings.model_validate(settings),
        teacher=teacher,
        normalize=normalize or Normalize(),
    )


def test_soft_distillation_is_equation_3_2() -> None:
    objective = distillation(
        supervised=Supervised(), kind="soft", temperature=2.0, weight=0.25, teacher=teacher_saying([[4.0, 0.0]])
    )
    losses = objective(Says([[1.0, -1.0]]), batch_of(torch.tensor([1])))
    student, teacher = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-2.0))  # of the first class, at temperature 2
    divergence = teacher * math.log(teacher / student) + (1 - teacher) * math.log((1 - teacher) / (1 - student))
    labels = math.log(1 + math.exp(2.0))
    assert losses.parts["labels"].item() == pytest.approx(labels)
    assert losses.parts["teacher"].item() == pytest.approx(4.0 * divergence, rel=1e-5)
    assert losses.total.item() == pytest.approx(0.75 * labels + 0.25 * 4.0 * divergence, rel=1e-5)


def test_hard_distillation_is_equation_3_3() -> None:
    objective = distillation(
        supervised=Supervised(smoothing=0.1), kind="hard", teacher=teacher_saying([[0.0, 5.0], [7.0, 6.9]])
    )
    losses = objective(Says([[1.0, -1.0], [0.5, 0.0]]), batch_of(torch.tensor([0, 1])))
    right, wrong = math.log(1 + math.exp(-2.0)), math.log(1 + math.exp(2.0))
    close, far = math.log(1 + math.exp(-0.5)), math.log(1 + math.exp(0.5))
    labels = (0.95 * right + 0.05 * wrong + 0.95 * far + 0.05 * close) / 2  # only the labels are smoothed
    teacher = (wrong + close) / 2
    assert losses.total.item() == pytest.approx((labels + teacher) / 2, rel=1e-5)


def test_the_weights_are_the_papers_unless_given() -> None:
    for kind, weight in (("soft", 0.1), ("hard", 0.5)):
        objective = distillation(supervised=Supervised(), kind=kind, teacher=teacher_saying([[0.0, 3.0]]))
        losses = objective(Says([[1.0, -1.0]]), batch_of(torch.tensor([0])))
        expected = (1 - weight) * losses.parts["labels"] + weight * losses.parts["teacher"]
        assert losses.total.item() == pytest.approx(expected.item())


def test_each_head_learns_from_its_own_label() -> None:
    student = Says([[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]])
    objective = distillation(supervised=Supervised(), kind="token", teacher=teacher_saying([[0.0, 0.0, 9.0]]))
    objective(student, batch_of(torch.tensor([1]))).total.backward()
    of_class, of_teacher = (output.grad for output in student.outputs)
    torch.testing.assert_close(of_class, torch.tensor([[1 / 6, -1 / 3, 1 / 6]]))  # half of softmax - label
    torch.testing.assert_close(of_teacher, torch.tensor([[1 / 6, 1 / 6, -1 / 3]]))


def test_binary_cross_entropy_takes_the_teachers_class_too() -> None:
    objective = distillation(supervised=Supervised(loss="bce"), kind="hard", teacher=teacher_saying([[0.0, 2.0]]))
    losses = objective(Says([[1.0, -1.0]]), batch_of(torch.tensor([0])))
    right, wrong = math.log(1 + math.exp(-1.0)), math.log(1 + math.exp(1.0))
    assert losses.parts["labels"].item() == pytest.approx(right)  # the mean over both classes, both right
    assert losses.parts["teacher"].item() == pytest.approx(wrong)


def test_the_teacher_sees_the_pixels_of_the_mixed_image() -> None:
    seen = []

    def teacher(pixels: Tensor) -> Tensor:
        seen.append(pixels)
        return torch.zeros(len(pixels), 3)

    bytes_ = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = ImageBatch(GREY(bytes_), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    batch = Blend(BlendSettings(mixup=0.8), num_classes=3, smoothing=0.1)(batch, seed=0, epoch=0, step=0)
    objective = distillation(supervised=Supervised(), teacher=teacher, normalize=GREY)
    objective(Says([[0.0] * 3] * 4), batch)
    torch.testing.assert_close(GREY.mean[0] + GREY.std[0] * batch.images, seen[0])
    assert not torch.allclose(seen[0], bytes_ / 255.0, atol=0.05)


def test_answers_in_the_batch_are_taken_and_nobody_is_asked() -> None:
    objective = distillation(supervised=Supervised(), kind="hard")
    batch = batch_of(torch.tensor([0]))._replace(answers=torch.tensor([[0.25, 0.75]]))
    losses = objective(Says([[1.0, -1.0]]), batch)
    right, wrong = math.log(1 + math.exp(-2.0)), math.log(1 + math.exp(2.0))
    assert losses.parts["teacher"].item() == pytest.approx(0.25 * right + 0.75 * wrong, rel=1e-5)
    with pytest.raises(ValueError, match="no teacher to ask"):
        objective(Says([[1.0, -1.0]]), batch_of(torch.tensor([0])))


@pytest.mark.parametrize("name", STUDENTS)
def test_the_teachers_label_reaches_the_distillation_token_and_not_the_class_head(name: str) -> None:
    model = randomize(small_model(name, distilled=True)).train()
    images = images_for(model)
    batch = ImageBatch(images, torch.tensor([0, 1]), torch.arange(2))
    objective = distillation(
        supervised=Supervised(), kind="token", weight=1.0, teacher=lambda pixels: torch.eye(NUM_CLASSES)[:2]
    )
    objective(model, batch).total.backward()
    gradients = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
    assert gradients["head.linear.weight"].abs().max() == 0.0
    assert gradients["head.distilled.weight"].abs().max() > 0.0
    token_names = [key for key in gradients if key.endswith("tokens") and not key.startswith("positions")]
    assert bool(token_names) == (name != "resmlp_s12")  # which has a second head and no token
    for key in token_names:
        assert gradients[key][0, 1].abs().max() > 0.0


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_every_family_learns_from_a_teacher_with_one_head(name: str, kind: str) -> None:
    model = randomize(small_model(name)).train()
    teacher = torch.eye(NUM_CLASSES)[:2]
    objective = distillation(supervised=Supervised(), kind=kind, teacher=lambda pixels: teacher)
    losses = objective(model, ImageBatch(images_for(model), torch.tensor([0, 1]), torch.arange(2)))
    losses.total.backward()
    assert all(value.grad is not None for value in model.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "warm"}, "'soft', 'hard' or 'token'"),
        ({"weight": 1.5}, "less than or equal to 1"),
        ({"temperature": 0.0}, "greater than 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distillation(supervised=Supervised(), **settings)


def test_a_student_without_a_distillation_head_is_refused() -> None:
    objective = distillation(supervised=Supervised(), kind="token", teacher=teacher_saying([[0.0, 1.0]]))
    with pytest.raises(ValueError, match="no distillation head: create it with distilled=True, or use kind hard"):
        objective(Says([[1.0, -1.0]]), batch_of(torch.tensor([0])))
