"""Supervised losses against sums done by hand, the papers' binary targets, and class weights."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from shrunk import NUM_CLASSES, images_for, small_model
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.blend import Blend
from vitrail.data.contract import ImageBatch, Level
from vitrail.evaluation.tokens import watched_tokens
from vitrail.settings.images import BlendSettings
from vitrail.tasks.classify.settings import ObjectiveSettings
from vitrail.tasks.classify.supervised import Supervised, balance_weights, binary_targets
from vitrail.tasks.classify.task import make_supervised
from vitrail.tasks.contract import Losses, Objective

LOGITS = torch.tensor([[0.0, math.log(3.0)], [math.log(4.0), 0.0]])  # probabilities [1/4, 3/4] and [4/5, 1/5]


class Answers(nn.Module):
    """A model that always gives the same answer."""

    def __init__(self, output: Tensor | tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return self.output


def cost(objective: Objective, targets: Tensor, output: Tensor | tuple[Tensor, Tensor] = LOGITS) -> Losses:
    batch = ImageBatch(torch.zeros(len(targets), 3, 2, 2), targets, torch.arange(len(targets)))
    return objective(Answers(output), batch)


def test_cross_entropy_of_class_indices() -> None:
    losses = cost(Supervised(), torch.tensor([1, 1]))
    assert losses.total.item() == pytest.approx(-(math.log(3 / 4) + math.log(1 / 5)) / 2)
    assert list(losses.parts) == ["cross_entropy"]
    assert losses.parts["cross_entropy"].item() == losses.total.item()


def test_cross_entropy_of_soft_targets() -> None:
    losses = cost(Supervised(), torch.tensor([[0.3, 0.7], [1.0, 0.0]]))
    by_hand = -(0.3 * math.log(1 / 4) + 0.7 * math.log(3 / 4) + math.log(4 / 5)) / 2
    assert losses.total.item() == pytest.approx(by_hand)


def test_class_indices_are_smoothed_and_soft_targets_are_not_smoothed_again() -> None:
    smoothed = torch.tensor([[0.05, 0.95], [0.95, 0.05]])
    for loss in ("cross_entropy", "bce"):
        objective = Supervised(loss=loss, smoothing=0.1, class_weights=(0.5, 2.0))
        by_index = cost(objective, torch.tensor([1, 0])).total
        assert torch.allclose(cost(objective, smoothed).total, by_index)
    by_hand = -(0.05 * math.log(1 / 4) + 0.95 * math.log(3 / 4) + 0.95 * math.log(4 / 5) + 0.05 * math.log(1 / 5)) / 2
    assert cost(Supervised(smoothing=0.1), torch.tensor([1, 0])).total.item() == pytest.approx(by_hand)


def test_one_hot_targets_cost_what_their_indices_do() -> None:
    for objective in (Supervised(), Supervised(loss="bce"), Supervised(class_weights=(0.5, 2.0))):
        by_index = cost(objective, torch.tensor([1, 0])).total
        assert torch.allclose(cost(objective, torch.tensor([[0.0, 1.0], [1.0, 0.0]])).total, by_index)


def test_binary_cross_entropy_is_the_mean_over_images_and_classes() -> None:
    losses = cost(Supervised(loss="bce"), torch.tensor([1, 0]))
    # Sigmoids of the logits: [1/2, 3/4] and [4/5, 1/2].
    by_hand = -(math.log(1 / 2) + math.log(3 / 4) + math.log(4 / 5) + math.log(1 / 2)) / 4
    assert losses.total.item() == pytest.approx(by_hand)
    assert list(losses.parts) == ["bce"]


def test_every_class_mixed_in_has_binary_target_one() -> None:
    mixed = torch.tensor([[0.999, 0.001, 0.0], [0.0, 1.0, 0.0]])
    assert binary_targets(mixed, num_classes=3).tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize("share", [0.001, 0.3, 0.5, 1.0])
def test_binary_targets_of_smoothed_ones_tell_the_classes_in_the_picture_from_the_floor(share: float) -> None:
    smoothing, num_classes = 0.1, 1000
    floor = smoothing / num_classes
    first, second = torch.full((2, 1, num_classes), floor)
    first[0, 3] += 1 - smoothing
    second[0, 8] += 1 - smoothing
    targets = binary_targets(share * first + (1 - share) * second, num_classes=num_classes, smoothing=smoothing)
    expected = torch.full((1, num_classes), floor)
    expected[0, [3, 8] if share < 1 else [3]] = 1 - smoothing + floor
    assert torch.allclose(targets, expected, atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("per", ["batch", "pair"])
def test_binary_targets_of_blended_batches_name_the_classes_of_both_images(
    smoothing: float, per: Literal["batch", "pair"]
) -> None:
    num_classes, labels = 50, torch.tensor([3, 7, 4, 4, 0, 49])
    blend = Blend(BlendSettings(mixup=0.8, cutmix=1.0, per=per), num_classes, smoothing)
    expected = torch.zeros(6, num_classes)
    for place in range(6):
        expected[place, [labels[place], labels[place ^ 1]]] = 1.0
    for step in range(20):
        batch = ImageBatch(torch.zeros(6, 3, 32, 32), labels, torch.arange(6))
        soft = blend(batch, seed=0, epoch=0, step=step).targets
        is_mixed = (soft.amax(dim=1) < 1.0 - smoothing) | (torch.arange(6) // 2 == 1)  # no box of no area
        targets = binary_targets(soft, num_classes=num_classes, smoothing=smoothing)
        assert torch.equal(targets[is_mixed] > 0.5, expected[is_mixed] > 0.5)
        assert is_mixed.any()


def test_images_of_several_classes_or_none() -> None:
    targets = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    by_hand = -(math.log(1 / 2) + math.log(3 / 4) + math.log(1 / 5) + math.log(1 / 2)) / 4
    assert cost(Supervised(loss="bce"), targets).total.item() == pytest.approx(by_hand)
    assert cost(Supervised(loss="bce"), targets.bool()).total.item() == pytest.approx(by_hand)


def test_class_weights_of_the_cross_entropy_weigh_images() -> None:
    losses = cost(Supervised(class_weights=(3.0, 0.5)), torch.tensor([1, 0]))
    assert losses.total.item() == pytest.approx(-(0.5 * math.log(3 / 4) + 3.0 * math.log(4 / 5)) / 2)


def test_class_weights_of_the_binary_cross_entropy_weigh_presence() -> None:
    losses = cost(Supervised(loss="bce", class_weights=(3.0, 0.5)), torch.tensor([1, 0]))
    by_hand = -(math.log(1 / 2) + 0.5 * math.log(3 / 4) + 3.0 * math.log(4 / 5) + math.log(1 / 2)) / 4
    assert losses.total.item() == pytest.approx(by_hand)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_the_loss_of_a_batch_is_the_mean_of_its_equal_parts(loss: str) -> None:
    objective = Supervised(loss=loss, class_weights=(1.0, 5.0, 0.2))
    logits, targets = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 2, 2])
    parts = [cost(objective, targets[part], logits[part]).total for part in (slice(0, 3), slice(3, 6))]
    assert torch.allclose(cost(objective, targets, logits).total, (parts[0] + parts[1]) / 2)


def test_sixteen_bit_answers_are_costed_in_float32() -> None:
    total = cost(Supervised(), torch.tensor([1, 0]), LOGITS.bfloat16()).total
    assert total.dtype == torch.float32


def test_two_heads_are_costed_as_the_mean_that_is_evaluated() -> None:
    other = torch.tensor([[1.0, -1.0], [0.0, 2.0]])
    targets = torch.tensor([1, 0])
    assert torch.equal(
        cost(Supervised(), targets, (LOGITS, other)).total, cost(Supervised(), targets, (LOGITS + other) / 2).total
    )


@pytest.mark.parametrize("name", ["deit_tiny", "deit_tiny_distilled", "cait_xxs24", "resmlp_s12", "patchconvnet_s20"])
def test_every_parameter_of_a_model_learns(name: str) -> None:
    model = small_model(name, drop_path=0.0).train()
    batch = ImageBatch(images_for(model), torch.tensor([1, NUM_CLASSES - 1]), torch.arange(2))
    losses = Supervised()(model, batch)
    losses.total.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert not losses.parts["cross_entropy"].requires_grad


def test_balance_weights_are_inverse_frequencies_of_average_one() -> None:
    counts = [6, 3, 0, 1]
    weights = balance_weights(counts)
    assert weights == pytest.approx((10 / 18, 10 / 9, 0.0, 10 / 3))
    assert sum(count * weight for count, weight in zip(counts, weights, strict=True)) == pytest.approx(sum(counts))


def test_balance_weights_of_effective_numbers() -> None:
    # Effective numbers 1 and 1 + 1/2: raw weights 1 and 2/3, their average over three images 7/9.
    assert balance_weights([1, 2], beta=0.5) == pytest.approx((9 / 7, 6 / 7))
    assert balance_weights([1, 1000], beta=0.0) == pytest.approx((1.0, 1.0))
    assert balance_weights([10, 1000], beta=1 - 1e-9) == pytest.approx(balance_weights([10, 1000]), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "hinge"}, "loss must be one of cross_entropy, bce, not 'hinge'"),
        ({"smoothing": 1.0}, "smoothing must be in"),
        ({"class_weights": (1.0, -1.0)}, "class_weights must be finite"),
    ],
)
def test_wrong_settings_are_told(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Supervised(**settings)


@pytest.mark.parametrize(
    ("objective", "targets", "message"),
    [
        (Supervised(), torch.zeros(2, 3), r"of shape \[2, 2\], not \[2, 3\] of torch.float32: does num_classes fit"),
        (Supervised(), torch.zeros(2), r"not \[2\] of torch.float32"),
        (Supervised(class_weights=(1.0, 1.0, 1.0)), torch.tensor([0, 1]), "3 class_weights for a model of 2 classes"),
    ],
)
def test_targets_that_do_not_fit_are_told(objective: Supervised, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cost(objective, targets)


def test_wrong_counts_are_told() -> None:
    with pytest.raises(ValueError, match="number of images of each class"):
        balance_weights([0, 0])
    with pytest.raises(ValueError, match="beta must be in"):
        balance_weights([1, 2], beta=1.0)


def test_each_of_two_heads_learns_the_labels_by_itself() -> None:
    """The control with two class tokens: the mean of the two losses, not the loss of the mean."""
    targets = torch.tensor([1, 0])
    heads = (LOGITS, 2.0 * LOGITS)
    separate = [cost(Supervised(), targets, head).total for head in heads]
    found = cost(Supervised(heads="each"), targets, heads)
    assert found.total.item() == pytest.approx((separate[0] + separate[1]).item() / 2)
    assert found.total.item() != pytest.approx(cost(Supervised(), targets, heads).total.item())
    with pytest.raises(
        ValueError, match=r"objective\.heads=each needs a model with two heads: take a deit_\*_distilled"
    ):
        cost(Supervised(heads="each"), targets)
    with pytest.raises(ValueError, match="heads must be one of joint, each"):
        Supervised(heads="both")


def test_two_class_tokens_are_trained_on_labels_and_can_be_compared() -> None:
    torch.manual_seed(0)
    model = small_model("deit_tiny_distilled", drop_path=0.0)
    images, targets = images_for(model), torch.tensor([0, 3])
    Supervised(heads="each")(model.train(), ImageBatch(images, targets, torch.arange(2))).total.backward()
    gradients = [head.bias.grad for head in model.classifier_layers()]
    for gradient, logits in zip(gradients, model(images), strict=True):  # half of softmax less target, each its own
        expected = (logits.softmax(dim=1) - functional.one_hot(targets, NUM_CLASSES)).mean(dim=0) / 2
        torch.testing.assert_close(gradient, expected)
    with watched_tokens(model.eval()) as tokens, torch.inference_mode():
        model(images)
    assert -1.0 <= dict(tokens.results())["norm"] <= 1.0


def test_heads_of_their_own_are_refused_where_a_teacher_or_an_embedding_is_learnt() -> None:
    labels = Level(("a", "b"), np.array([0, 1]))
    settings = ObjectiveSettings(heads="each")
    assert make_supervised(settings, labels, allows_each=True).heads == "each"
    with pytest.raises(ValueError, match=r"objective\.heads=each is for task=classify"):
        make_supervised(settings, labels)
