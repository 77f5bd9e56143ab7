"""How well a model ranks images for each class, where an image may have several: mean average precision."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitrail.evaluation.class_scores import ClassScores


class AveragePrecisionMeter:
    """Keeps the logits and labels of all images, from which the exact mean average precision follows.

    Feed it logits and masks [batch, classes]. An image without a label counts: it should rank low for every class.
    A class without an image has no average precision and is left out of the mean.

    Meters of several ranks are joined by `joined`, exactly, no matter how the images were divided.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._logits: list[Tensor] = [torch.zeros(0, num_classes)]
        self._labels: list[Tensor] = [torch.zeros(0, num_classes, dtype=torch.bool)]

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Keep the logits and labels of a batch."""
        if logits.ndim != 2 or logits.shape[1] != self.num_classes or targets.shape != logits.shape:
            raise ValueError(
                f"expected logits and a mask [batch, {self.num_classes}], "
                f"got {list(logits.shape)} and {list(targets.shape)}"
            )
        self._logits.append(logits.detach().float().cpu())
        self._labels.append(targets.cpu() > 0.5)

    @classmethod
    def joined(cls, meters: "Sequence[AveragePrecisionMeter]") -> "AveragePrecisionMeter":
        """One meter of all that several have seen."""
        whole = cls(meters[0].num_classes)
        for meter in meters:
            if meter.num_classes != whole.num_classes:
                raise ValueError(f"a meter of {meter.num_classes} classes can't be joined to {whole.num_classes}")
            whole._logits += meter._logits
            whole._labels += meter._labels
        return whole

    def class_precision(self) -> Tensor:
        """The average precision of each class as a percentage, [classes]; not a number without an image of it."""
        logits, labels = torch.cat(self._logits), torch.cat(self._labels)
        columns = zip(logits.unbind(dim=1), labels.unbind(dim=1), strict=True)
        return torch.tensor([100.0 * average_precision(*column) for column in columns], dtype=torch.float64)

    def class_scores(self) -> ClassScores:
        """Precision, recall and F1 of each class, which is answered where its own probability is above a half.

        For models that learnt to say of each class by itself whether it is there (`objective.loss=bce`).
        """
        is_answer, labels = torch.cat(self._logits) > 0.0, torch.cat(self._labels)
        return ClassScores(*(mask.sum(dim=0).numpy() for mask in (labels, is_answer, labels & is_answer)))

    def results(self) -> Iterator[tuple[str, float]]:
        """The mean average precision over classes."""
        mean = self.class_precision().nanmean().item()
        if mean != mean:
            raise ValueError("nothing was evaluated: the split is empty or none of its images has a label")
        yield "mean_average_precision", mean


def average_precision(scores: Tensor, is_positive: Tensor) -> float:
    """The precision at each score, weighted by the share of positives that it adds; not a number without a positive.

    No interpolation. Images of equal scores are taken together, so that their order does not matter; a score that is
    not a number ranks last.
    """
    ranked, order = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).sort(descending=True)
    is_last = torch.ones_like(ranked, dtype=torch.bool)  # of the images of one score
    is_last[:-1] = ranked[1:] != ranked[:-1]
    found = is_positive[order].double().cumsum(dim=0)[is_last]
    taken = torch.arange(1, len(ranked) + 1, dtype=torch.float64)[is_last]
    total = is_positive.sum().item()
    if total == 0:
        return float("nan")
    return (found.diff(prepend=found.new_zeros(1)) * found / taken).sum().item() / total
