"""How good masks are: pixels counted by their true class and the answer, exact over any number of processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

IGNORED = 255  # the label of a pixel that is not counted
COLUMNS = ("class", "iou", "recall", "precision", "pixels")


class MaskMeter:
    """Pixels [true classes, answers]; those whose label is unknown are nobody's."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.counts = torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def update(self, answers: Tensor, masks: Tensor) -> Tensor:
        """Count answers [..., height, width] against masks of the same shape; the counts of these alone."""
        is_known = masks != IGNORED
        truth, said = masks[is_known].long(), answers[is_known].long()
        num_classes = self.num_classes
        counts = torch.bincount(truth * num_classes + said, minlength=num_classes**2)
        counts = counts.view(num_classes, num_classes).cpu()
        self.counts += counts
        return counts

    def results(self) -> Iterator[tuple[str, float]]:
        """Mean intersection over union, share of right pixels, and its mean over the classes, in percent."""
        yield from describe_counts(self.counts).items()

    def rows(self, classes: Sequence[str]) -> list[dict[str, Any]]:
        """The figures of each class, in percent; of one that is neither there nor answered they are None."""
        counts = self.counts.double()
        right, truth, said = counts.diagonal(), counts.sum(dim=1), counts.sum(dim=0)
        return [
            {
                "class": name,
                "iou": _percent(right[place], truth[place] + said[place] - right[place]),
                "recall": _percent(right[place], truth[place]),
                "precision": _percent(right[place], said[place]),
                "pixels": int(truth[place]),
            }
            for place, name in enumerate(classes)
        ]


def describe_counts(counts: Tensor) -> dict[str, float]:
    """The figures of counts [true classes, answers]; classes that are neither there nor answered have no part in them.

    So does torchmetrics' macro average.
    """
    exact = counts.double()
    right, truth, said = exact.diagonal(), exact.sum(dim=1), exact.sum(dim=0)
    union = truth + said - right
    is_there, is_true = union > 0, truth > 0
    return {
        "mean_iou": 100.0 * float((right[is_there] / union[is_there]).mean()) if bool(is_there.any()) else 0.0,
        "pixel_accuracy": 100.0 * float(right.sum() / exact.sum().clamp_min(1.0)),
        "class_accuracy": 100.0 * float((right[is_true] / truth[is_true]).mean()) if bool(is_true.any()) else 0.0,
    }


def find_confusions(counts: Tensor, classes: Sequence[str]) -> list[Mapping[str, Any]]:
    """Pairs of a true class and another that was answered, the most pixels first."""
    wrong = counts.clone().fill_diagonal_(0)
    pairs = sorted(((int(wrong[i, j]), i, j) for i, j in wrong.nonzero().tolist()), key=lambda pair: -pair[0])
    return [{"class": classes[i], "answer": classes[j], "pixels": number} for number, i, j in pairs]


def _percent(part: Tensor, whole: Tensor) -> float | None:
    return 100.0 * float(part / whole) if float(whole) > 0.0 else None
