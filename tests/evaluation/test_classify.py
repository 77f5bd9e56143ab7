"""The classification meter against counts done by hand and a slow loop, over batches, ranks and kinds of labels."""

import math

import pytest
import torch
from torch import Tensor

from vitrail.evaluation.classify import MAX_CONFUSION_CLASSES, NUM_BINS, ClassificationMeter


def measure(logits: Tensor, targets: Tensor, **settings: list[int]) -> dict[str, float]:
    meter = ClassificationMeter(logits.shape[1], **settings)  # type: ignore[arg-type]
    meter.update(logits, targets)
    return dict(meter.results())


def some_answers(count: int, num_classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that are right more often than not, and labels."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(num_classes, (count,), generator=generator)
    logits = torch.randn(count, num_classes, generator=generator)
    logits[torch.arange(count), targets] += 1.5
    return logits, targets


def log_of(*rows: list[float]) -> Tensor:
    """Logits with the given probabilities."""
    return torch.tensor(rows, dtype=torch.float64).log()


def test_four_images_by_hand() -> None:
    logits = log_of([0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3001, 0.3999], [0.9, 0.05, 0.05])
    targets = torch.tensor([0, 2, 2, 1])
    meter = ClassificationMeter(3)
    meter.update(logits, targets)
    results = dict(meter.results())
    assert results["top1"] == 50.0
    assert "top5" not in results  # of three classes one is always right
    assert results["count"] == 4.0
    assert results["negative_log_likelihood"] == pytest.approx(-math.log(0.7 * 0.4 * 0.3999 * 0.05) / 4)
    # Each image has a bin of its own: gaps 1 - 0.7, 0.5, 1 - 0.3999 and 0.9.
    assert results["calibration_error"] == pytest.approx(100 * (0.3 + 0.5 + 0.6001 + 0.9) / 4)
    assert meter.class_accuracy().tolist() == [100.0, 0.0, 50.0]
    assert results["class_mean_top1"] == 50.0
    assert meter.confusion().tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 1]]


def test_answers_of_one_bin_are_judged_together() -> None:
    # Confidence 0.75 four times, right three times: perfectly calibrated.
    logits = log_of(*[[0.75, 0.25]] * 4)
    assert measure(logits, torch.tensor([0, 0, 0, 1]))["calibration_error"] == pytest.approx(0.0, abs=1e-9)
    assert measure(logits, torch.tensor([0, 0, 1, 1]))["calibration_error"] == pytest.approx(25.0)


def test_five_guesses_of_many() -> None:
    logits = torch.arange(10.0).repeat(10, 1)  # the five guesses are always 9, 8, 7, 6, 5
    results = measure(logits, torch.arange(10))
    assert (results["top1"], results["top5"]) == (10.0, 50.0)


@pytest.mark.parametrize("num_classes", [2, 5, 13])
def test_agrees_with_a_slow_loop(num_classes: int) -> None:
    logits, targets = some_answers(200, num_classes)
    expected = slow_loop(logits.double(), targets)
    results = measure(logits, targets)
    assert results == pytest.approx({name: expected[name] for name in results}, rel=1e-9)


def slow_loop(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Every figure from its definition, an image at a time."""
    count, num_classes = logits.shape
    right, right_of_five, likelihood = [], 0, 0.0
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(NUM_BINS)]
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        largest = max(row)
        exponentials = [math.exp(value - largest) for value in row]
        probabilities = [value / sum(exponentials) for value in exponentials]
        order = sorted(range(num_classes), key=lambda index: -row[index])
        right.append(order[0] == target)
        right_of_five += target in order[:5]
        likelihood -= math.log(probabilities[target])
        confidence = probabilities[order[0]]
        place = next(place for place in range(NUM_BINS) if confidence <= (place + 1) / NUM_BINS + 1e-15)
        bins[place].append((confidence, right[-1]))
    per_class = [
        sum(is_right for is_right, label in zip(right, targets.tolist(), strict=True) if label == c)
        / targets.tolist().count(c)
        for c in set(targets.tolist())
    ]
    scores = [hand_scores(logits.argmax(dim=1).tolist(), targets.tolist(), c) for c in set(targets.tolist())]
    gap = sum(abs(sum(c for c, _ in found) - sum(r for _, r in found)) for found in bins)
    return {
        "top1": 100 * sum(right) / count,
        "top5": 100 * right_of_five / count,
        "negative_log_likelihood": likelihood / count,
        "calibration_error": 100 * gap / count,
        "class_mean_top1": 100 * sum(per_class) / len(per_class),
        "macro_precision": 100 * sum(precision for precision, _ in scores) / len(scores),
        "macro_f1": 100 * sum(f1 for _, f1 in scores) / len(scores),
        "count": float(count),
    }


def hand_scores(answers: list[int], targets: list[int], label: int) -> tuple[float, float]:
    """Precision and F1 of a class, from true and false positives and negatives."""
    pairs = list(zip(answers, targets, strict=True))
    hits = pairs.count((label, label))
    false_alarms = sum(answer == label != target for answer, target in pairs)
    misses = sum(target == label != answer for answer, target in pairs)
    return hits / max(hits + false_alarms, 1), 2 * hits / (2 * hits + false_alarms + misses)


def test_scores_by_class_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    logits, targets = some_answers(60, 9)
    targets[targets == 8] = 7  # a class without images, which is answered all the same
    logits[:, 6] = -10.0  # and one that is never answered
    meter = ClassificationMeter(9)
    meter.update(logits, targets)
    scores = meter.class_scores()
    answers = logits.argmax(dim=1)
    expected = metrics.precision_recall_fscore_support(targets, answers, labels=range(9), zero_division=0)
    for found, wanted in zip((scores.precision, scores.recall, scores.f1), expected[:3], strict=True):
        assert found.tolist() == pytest.approx((100 * wanted).tolist())
    assert scores.num_images.tolist() == expected[3].tolist()
    assert scores.num_answers.tolist() == [answers.tolist().count(label) for label in range(9)]
    results = dict(meter.results())
    seen = sorted(set(targets.tolist()))
    means = metrics.precision_recall_fscore_support(targets, answers, labels=seen, average="macro", zero_division=0)
    found_means = [results["macro_precision"], results["class_mean_top1"], results["macro_f1"]]
    assert found_means == pytest.approx([100 * value for value in means[:3]])
    rows = list(scores.rows([f"class {label}" for label in range(9)]))
    assert rows[8]["count"] == 0
    assert rows[8]["num_answers"] > 0
    assert rows[8]["f1"] is None
    assert rows[6]["precision"] == rows[6]["f1"] == 0.0


def test_several_valid_labels() -> None:
    logits = log_of([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.6, 0.3, 0.1])
    valid = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
    for targets in (valid, valid.float()):
        meter = ClassificationMeter(3)
        meter.update(logits, targets)
        results = dict(meter.results())
        assert results["top1"] == 50.0  # one of two: the third image has no label and is skipped
        assert results["count"] == 2.0
        assert results["negative_log_likelihood"] == pytest.approx(-(math.log(0.9) + math.log(0.4)) / 2)
        assert "class_mean_top1" not in results
        assert meter.confusion().sum() == 0


def test_a_mask_of_one_label_each_is_the_same_as_indices() -> None:
    logits, targets = some_answers(40, 6)
    mask = torch.nn.functional.one_hot(targets, 6).bool()
    assert measure(logits, mask) == measure(logits, targets)


def test_labels_below_zero_are_skipped() -> None:
    logits, targets = some_answers(40, 6)
    padded = torch.cat([logits, torch.randn(3, 6)]), torch.cat([targets, torch.full((3,), -1)])
    assert measure(*padded) == measure(logits, targets)


@pytest.mark.parametrize("shares", [[100], [50, 50], [97, 3], [1, 99], [0, 60, 40], [34, 33, 33]])
def test_merged_ranks_give_what_one_process_does(shares: list[int]) -> None:
    logits, targets = some_answers(sum(shares), 7)
    one = ClassificationMeter(7, coarse_of=[0, 0, 1, 1, 2, 2, 2])
    one.update(logits, targets)
    merged = ClassificationMeter(7, coarse_of=[0, 0, 1, 1, 2, 2, 2])
    for part, labels in zip(logits.split(shares), targets.split(shares), strict=True):
        rank = ClassificationMeter(7, coarse_of=[0, 0, 1, 1, 2, 2, 2])
        rank.update(part, labels)
        merged.merge(rank)
    assert torch.equal(merged.confusion(), one.confusion())
    assert torch.equal(merged.class_accuracy(), one.class_accuracy())
    results = dict(one.results())
    for name, value in merged.results():
        if name in ("negative_log_likelihood", "calibration_error"):
            assert value == pytest.approx(results[name], rel=1e-12)
        else:
            assert value == results[name]


def test_a_sum_of_the_totals_is_a_merge() -> None:
    first, second = ClassificationMeter(4), ClassificationMeter(4)
    first.update(*some_answers(10, 4, seed=1))
    second.update(*some_answers(3, 4, seed=2))
    summed = ClassificationMeter(4)
    summed.totals += first.totals + second.totals
    first.merge(second)
    assert dict(summed.results()) == dict(first.results())
    assert summed.count == 13
    assert first.totals.dtype == torch.float64


def test_batches_do_not_matter() -> None:
    logits, targets = some_answers(50, 5)
    meter = ClassificationMeter(5)
    for part in torch.arange(50).split(7):
        meter.update(logits[part], targets[part])
    assert dict(meter.results()) == pytest.approx(measure(logits, targets), rel=1e-12)


def test_the_coarse_answer_is_that_of_the_class_and_the_sum_is_told_beside_it() -> None:
    # Fine answer 0, but its group has 0.4 and the group of classes 1 and 2 has 0.6.
    logits = log_of([0.4, 0.35, 0.25], [0.4, 0.35, 0.25], [0.8, 0.1, 0.1])
    results = measure(logits, torch.tensor([0, 2, 0]), coarse_of=[0, 1, 1])
    assert results["top1"] == results["coarse_top1"] == pytest.approx(200 / 3)  # right, wrong, right
    assert results["coarse_summed_top1"] == pytest.approx(200 / 3)  # wrong, right, right
    valid = torch.tensor([[True, True, False]])
    assert measure(logits[:1], valid, coarse_of=[0, 1, 1])["coarse_summed_top1"] == 100.0


def test_the_coarse_answer_is_never_worse_than_the_class_however_flat_the_answers_are() -> None:
    targets = torch.arange(40) % 10
    logits = 1e-3 * torch.nn.functional.one_hot(targets, 10).float()
    results = measure(logits, targets, coarse_of=[0] * 7 + [1, 2, 3])
    assert results["top1"] == results["coarse_top1"] == 100.0
    assert results["coarse_summed_top1"] == 70.0  # the coarse class of the most classes, always


def test_equal_and_unusable_answers_are_not_counted_as_right() -> None:
    targets = torch.arange(10)
    assert measure(torch.zeros(10, 10), targets)["top1"] == 10.0
    results = measure(torch.full((10, 10), torch.nan), targets)
    assert results["top1"] <= 10.0
    assert math.isnan(results["negative_log_likelihood"])


def test_sixteen_bit_answers_and_impossible_labels() -> None:
    logits = torch.tensor([[30.0, -200.0]], dtype=torch.bfloat16)
    assert measure(logits, torch.tensor([1]))["negative_log_likelihood"] == pytest.approx(230.0)


def test_a_class_without_images_has_no_accuracy_and_does_not_count_in_the_mean() -> None:
    meter = ClassificationMeter(3)
    meter.update(torch.eye(3)[[0, 1]], torch.tensor([0, 0]))
    accuracy = meter.class_accuracy()
    assert accuracy[0] == 50.0
    assert accuracy[1:].isnan().all()
    assert dict(meter.results())["class_mean_top1"] == 50.0


def test_many_classes_have_no_confusion_matrix() -> None:
    meter = ClassificationMeter(MAX_CONFUSION_CLASSES + 1)
    meter.update(*some_answers(4, MAX_CONFUSION_CLASSES + 1))
    assert meter.count == 4
    assert len(meter.totals) < 4 * MAX_CONFUSION_CLASSES
    with pytest.raises(ValueError, match="no confusion matrix is kept above 2000 classes"):
        meter.confusion()


def test_wrong_input_is_told() -> None:
    meter = ClassificationMeter(3)
    with pytest.raises(ValueError, match="nothing was evaluated"):
        dict(meter.results())
    for logits, targets, message in (
        (torch.zeros(2, 4), torch.zeros(2).long(), r"expected logits \[batch, 3\], got \[2, 4\]"),
        (torch.zeros(2, 3), torch.zeros(3).long(), r"expected class indices \[2\] or a mask \[2, 3\], got \[3\]"),
        (torch.zeros(2, 3), torch.zeros(2), r"got \[2\] of torch.float32"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "label 3 is not one of the 3 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            meter.update(logits, targets)
    with pytest.raises(ValueError, match="for each of the 3 classes"):
        ClassificationMeter(3, coarse_of=[0, 1])
    with pytest.raises(ValueError, match="a meter of 4 classes can't be merged into one of 3"):
        meter.merge(ClassificationMeter(4))
