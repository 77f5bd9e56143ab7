"""DINO's head, loss, centre and gradients: equal to the official code, and in any chunks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from vitrail.heads.dino import ProjectionHead, Prototypes
from vitrail.tasks.dino import self_distillation
from vitrail.tasks.dino.self_distillation import DinoLosses, Temperatures, dino_loss

FILE = Path(__file__).parents[1] / "data" / "dino_official.safetensors"


class Official:
    """What the official code gave for small random tensors, and how it was called."""

    def __init__(self) -> None:
        with safe_open(FILE, "pt") as file:
            self.config: dict[str, Any] = json.loads(file.metadata()["config"])
            self.tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def head(self) -> ProjectionHead:
        head = ProjectionHead(24, hidden_dim=48, bottleneck_dim=16, num_outputs=32)
        state = {name.removeprefix("head."): value for name, value in self.tensors.items() if name.startswith("head.")}
        assert torch.equal(state.pop("last_layer.weight_g"), torch.ones(32, 1))  # the norm is fixed
        state["prototypes.weight"] = state.pop("last_layer.weight_v")
        head.load_state_dict(state)
        return head

    def by_image(self, rows: Tensor) -> Tensor:
        """Rows of concatenated crops as [batch, crops, ...]."""
        return rows.unflatten(0, (-1, self.config["batch"])).transpose(0, 1)


@pytest.fixture(scope="module")
def official() -> Official:
    return Official()


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_head_is_the_official_one(official: Official) -> None:
    head = official.head()
    assert_near(head(official.tensors["student_features"]), official.tensors["student_output"])
    assert_near(head(official.tensors["teacher_features"]), official.tensors["teacher_output"])


def test_losses_centre_and_gradients_are_the_official_ones(official: Official) -> None:
    """The teacher's answers grow by 0.1 an epoch: as a centre that is lower by as much has the same effect."""
    config, head, teacher = official.config, official.head(), official.head().requires_grad_(False)
    features = official.tensors["student_features"].clone().requires_grad_()
    taught = teacher.project(official.tensors["teacher_features"])
    centre = torch.zeros(config["out_dim"])
    for epoch, temperature in enumerate(config["teacher_temp"]):
        features.grad = None
        found = dino_loss(
            official.by_image(head.project(features)),
            official.by_image(taught),
            prototypes=head.prototypes,
            teacher_prototypes=teacher.prototypes,
            centre=centre - 0.1 * epoch,
            temperatures=Temperatures(config["student_temp"], temperature),
        )
        found.loss.backward()
        assert_near(found.loss.detach(), official.tensors[f"loss_{epoch}"][0])
        batch_centre = teacher.prototypes(taught.mean(dim=0)) + 0.1 * epoch
        centre = config["center_momentum"] * centre + (1.0 - config["center_momentum"]) * batch_centre
        assert_near(centre, official.tensors[f"center_{epoch}"][0])
    assert features.grad is not None
    assert_near(features.grad, official.tensors["student_features_grad"])


# The loss in chunks


def plain_loss(student: Tensor, teacher: Tensor, heads: tuple[Prototypes, Prototypes], centre: Tensor) -> DinoLosses:
    """The loss of every pair of crops on its own."""
    answers = ((heads[1](teacher) - centre) / 0.05).softmax(dim=-1).detach()
    logs = (heads[0](student) / 0.1).log_softmax(dim=-1)
    costs = [
        -(answers[:, seen] * logs[:, crop]).sum(dim=-1).mean()
        for seen in range(2)
        for crop in range(student.shape[1])
        if crop != seen
    ]
    entropy = -(answers * answers.log()).sum(dim=-1).mean()
    return DinoLosses(torch.stack(costs).mean(), entropy, answers.sum(dim=(0, 1)))


def case(num_crops: int, *, learns_gain: bool = False) -> tuple[Tensor, Tensor, tuple[Prototypes, Prototypes], Tensor]:
    torch.manual_seed(0)
    heads = tuple(Prototypes(6, num_outputs=20, learns_gain=learns_gain).double() for _ in range(2))
    assert len(heads) == 2
    for head in heads:
        if head.gain is not None:
            torch.nn.init.uniform_(head.gain, 0.5, 2.0)
    student = torch.nn.functional.normalize(torch.randn(5, num_crops, 6, dtype=torch.float64), dim=-1)
    teacher = torch.nn.functional.normalize(torch.randn(5, 2, 6, dtype=torch.float64), dim=-1)
    return student.requires_grad_(), teacher, heads, torch.randn(20, dtype=torch.float64) / 5


def loss_of(student: Tensor, teacher: Tensor, heads: tuple[Prototypes, Prototypes], centre: Tensor) -> DinoLosses:
    return dino_loss(
        student,
        teacher,
        prototypes=heads[0],
        teacher_prototypes=heads[1],
        centre=centre,
        temperatures=Temperatures(student=0.1, teacher=0.05),
    )


@pytest.mark.parametrize(("num_crops", "learns_gain"), [(2, False), (5, False), (5, True)])
@pytest.mark.parametrize("at_once", [1, 2**20])
def test_loss_and_gradients_are_those_of_every_pair(
    num_crops: int, learns_gain: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_distillation, "_NUMBERS_AT_ONCE_ON_CPU", at_once)
    given = case(num_crops, learns_gain=learns_gain)
    learning = [given[0], *given[2][0].parameters()]
    found, expected = loss_of(*given), plain_loss(*given)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found[1:], expected[1:])
    of_found, of_expected = (torch.autograd.grad(3.0 * losses.loss, learning) for losses in (found, expected))
    torch.testing.assert_close(of_found, of_expected)


def test_no_answer_is_kept_for_the_backward_pass() -> None:
    prototypes = Prototypes(4, num_outputs=500)
    student = torch.randn(16, 8, 4, requires_grad=True)
    loss = loss_of(student, torch.randn(16, 2, 4), (prototypes, prototypes), torch.zeros(500)).loss
    assert loss.grad_fn is not None
    kept = [part.numel() for part in loss.grad_fn.gradients]  # type: ignore[attr-defined]
    assert kept == [student.numel(), prototypes.weight.numel()]  # 16 * 8 answers of 500 would be many times more


def test_products_follow_autocast_and_the_rest_does_not() -> None:
    student, teacher, heads, centre = case(5)
    exact = loss_of(student, teacher, heads, centre).loss
    for head in heads:
        head.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = loss_of(student.float(), teacher.float(), heads, centre.float()).loss
    assert rounded.dtype == torch.float32
    assert 0.0 < abs(rounded.item() - exact.item()) < 0.05


def test_a_loss_without_gradients_can_be_asked_for() -> None:
    given = case(5)
    with torch.no_grad():
        found = loss_of(*given)
    torch.testing.assert_close(found.loss, plain_loss(*given).loss)
    assert not found.loss.requires_grad
