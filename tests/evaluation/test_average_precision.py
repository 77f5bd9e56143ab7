"""Mean average precision against counts done by hand, a slow loop and scikit-learn."""

import math

import pytest
import torch
from torch import Tensor

from vitrail.evaluation.average_precision import AveragePrecisionMeter, average_precision


def measure(logits: Tensor, labels: Tensor) -> float:
    meter = AveragePrecisionMeter(logits.shape[1])
    meter.update(logits, labels)
    return dict(meter.results())["mean_average_precision"]


def some_answers(count: int, num_classes: int, *, num_scores: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of a few values only, so that many are equal, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(count, num_classes, generator=generator) < 0.3
    logits = torch.randint(num_scores, (count, num_classes), generator=generator) + labels.float()
    return logits, labels


def slow_average_precision(scores: list[float], is_positive: list[bool]) -> float:
    """From its definition: at every threshold the precision, times the recall it adds."""
    total, recall, area = sum(is_positive), 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [positive for score, positive in zip(scores, is_positive, strict=True) if score >= threshold]
        area += (sum(chosen) / total - recall) * sum(chosen) / len(chosen)
        recall = sum(chosen) / total
    return area


def test_one_class_by_hand() -> None:
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])
    # Positives at ranks 1 and 3: (1/1 + 2/3) / 2.
    assert average_precision(scores, torch.tensor([True, False, True, False])) == pytest.approx(5 / 6)
    assert average_precision(scores, torch.tensor([False, False, False, True])) == 0.25
    assert average_precision(scores, torch.tensor([True, True, False, False])) == 1.0
    assert math.isnan(average_precision(scores, torch.zeros(4, dtype=torch.bool)))


def test_images_of_equal_scores_are_taken_together() -> None:
    for order in ([True, False, False], [False, False, True]):
        assert average_precision(torch.ones(3), torch.tensor(order)) == pytest.approx(1 / 3)


def test_a_score_that_is_not_a_number_ranks_last() -> None:
    assert average_precision(torch.tensor([math.nan, 0.0]), torch.tensor([True, False])) == 0.5


def test_the_mean_is_over_classes_that_have_images_and_images_without_labels_count() -> None:
    logits = torch.tensor([[2.0, 0.0, 5.0], [1.0, 1.0, 5.0], [3.0, -1.0, 5.0]])
    labels = torch.tensor([[True, False, False], [False, True, False], [False, False, False]])
    # Class 0: the image without a label ranks before its own, 1/2; class 1: 1; class 2 has none.
    assert measure(logits, labels) == pytest.approx(75.0)
    assert measure(logits, labels.float()) == pytest.approx(75.0)


@pytest.mark.parametrize("num_scores", [3, 1000])
def test_agrees_with_a_slow_loop(num_scores: int) -> None:
    logits, labels = some_answers(60, 4, num_scores=num_scores)
    columns = zip(logits.T.tolist(), labels.T.tolist(), strict=True)
    expected = [100 * slow_average_precision(*column) for column in columns]
    meter = AveragePrecisionMeter(4)
    for part in torch.arange(60).split(7):
        meter.update(logits[part], labels[part])
    assert meter.class_precision().tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("num_scores", [3, 1000])
def test_agrees_with_scikit_learn(num_scores: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    logits, labels = some_answers(200, 5, num_scores=num_scores)
    expected = 100 * metrics.average_precision_score(labels.numpy(), logits.numpy(), average="macro")
    assert measure(logits, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shares", [[40, 20], [59, 1], [0, 60], [20, 20, 20]])
def test_joined_ranks_give_exactly_what_one_process_does(shares: list[int]) -> None:
    logits, labels = some_answers(60, 4, num_scores=9)
    meters = []
    for part in torch.randperm(60, generator=torch.Generator().manual_seed(1)).split(shares):
        meters.append(AveragePrecisionMeter(4))
        if len(part):
            meters[-1].update(logits[part], labels[part])
    assert dict(AveragePrecisionMeter.joined(meters).results())["mean_average_precision"] == measure(logits, labels)


def test_wrong_input_is_told() -> None:
    meter = AveragePrecisionMeter(3)
    with pytest.raises(ValueError, match="nothing was evaluated"):
        dict(meter.results())
    with pytest.raises(ValueError, match=r"expected logits and a mask \[batch, 3\], got \[2, 3\] and \[2\]"):
        meter.update(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="a meter of 2 classes can't be joined to 3"):
        AveragePrecisionMeter.joined([meter, AveragePrecisionMeter(2)])


def test_scores_by_class_are_those_of_scikit_learn_at_a_half() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    logits, labels = some_answers(40, 5, num_scores=4)
    logits -= 2.5
    meter = AveragePrecisionMeter(5)
    for part in torch.arange(40).split(9):
        meter.update(logits[part], labels[part])
    scores = meter.class_scores()
    expected = metrics.precision_recall_fscore_support(labels.numpy(), (logits.sigmoid() > 0.5).numpy())
    for found, wanted in zip((scores.precision, scores.recall, scores.f1), expected[:3], strict=True):
        assert found.tolist() == pytest.approx((100 * wanted).tolist())
    assert scores.num_images.tolist() == expected[3].tolist()
