"""How well a model classifies: accuracy, calibration and confusion, summed batch by batch and over ranks."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitrail.evaluation.class_scores import ClassScores

NUM_TOP = 5  # answers, of which one may be right
NUM_BINS = 15  # of confidence, equally wide, for the calibration error (Guo et al. 2017)
# Above this many classes no confusion matrix is kept: it would take more than 32 MB.
MAX_CONFUSION_CLASSES = 2000
_SUMS = ("count", "right", "right_of_five", "negative_log_likelihood", "right_coarse", "right_summed")


class ClassificationMeter:
    """Sums over all images seen, from which every figure follows; percentages, as in the papers' tables.

    Feed it logits and either class indices [batch] or, where an image may have several valid labels as in
    ImageNet-ReaL, a mask [batch, classes]: an answer is right when it is one of them. Images without a label, an index
    below 0 or an empty row, are skipped. Figures per class are of the images with one label.

    `coarse_of` maps each class to a coarser one. The coarse answer is that of the class answered, so that whoever is
    right about the class is right about its coarse one; the one with the largest summed probability is told beside it.
    Sums favour coarse classes of many classes where probabilities say little.

    All that was seen is in the one vector `totals`: meters of several ranks are merged by summing theirs, exactly, no
    matter how many images each rank had.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        coarse_of: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, not {num_classes}")
        if coarse_of is not None and (len(coarse_of) != num_classes or min(coarse_of) < 0):
            raise ValueError(f"coarse_of must give an index of at least 0 for each of the {num_classes} classes")
        self.num_classes = num_classes
        self.coarse_of = None if coarse_of is None else torch.tensor(coarse_of, device=device)
        num_rows = num_classes if num_classes <= MAX_CONFUSION_CLASSES else 0
        sizes = [len(_SUMS), 3 * NUM_BINS, 3 * num_classes, num_rows * num_classes]
        self.totals = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._sums, bins, classes, confusion = self.totals.split(sizes)  # views, all of them
        self._bins = bins.view(3, NUM_BINS)  # images, their confidence, right answers
        self._classes = classes.view(3, num_classes)  # images, answers, right answers
        self._confusion = confusion.view(num_rows, num_classes)

    @torch.no_grad()
    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch: logits [batch, classes] and its labels."""
        logits = logits.detach().to(self.totals.device, torch.float64)
        valid = self._valid_labels(targets.to(self.totals.device), logits)
        is_counted = valid.any(dim=1)
        logits, valid = logits[is_counted], valid[is_counted]
        if len(logits) == 0:
            return
        log_probabilities = logits.log_softmax(dim=1)
        probabilities = log_probabilities.exp()
        ranked = probabilities.topk(min(NUM_TOP, self.num_classes), dim=1).indices
        is_hit = valid.gather(1, ranked)
        is_right, answers = is_hit[:, 0].double(), ranked[:, 0]
        log_likelihood = log_probabilities.masked_fill(~valid, -torch.inf).logsumexp(dim=1)
        coarse = (torch.zeros_like(is_right),) * 2
        if self.coarse_of is not None:
            coarse = self._coarse_hits(probabilities, answers, valid, self.coarse_of)
        columns = (torch.ones_like(is_right), is_right, is_hit.any(dim=1).double(), -log_likelihood, *coarse)
        self._sums += torch.stack([column.sum() for column in columns])
        self._count_bins(probabilities.gather(1, answers[:, None])[:, 0], is_right)
        self._count_classes(valid, answers)

    def merge(self, other: "ClassificationMeter") -> None:
        """Add what another meter of the same classes has seen."""
        if self.totals.shape != other.totals.shape:
            raise ValueError(f"a meter of {other.num_classes} classes can't be merged into one of {self.num_classes}")
        self.totals += other.totals.to(self.totals.device)

    def results(self) -> Iterator[tuple[str, float]]:
        """Names and numbers: percentages, the negative log-likelihood in nats, and the count of images."""
        count = self.count
        if count == 0:
            raise ValueError("nothing was evaluated: the split is empty or none of its images has a label")
        sums = dict(zip(_SUMS, self._sums.tolist(), strict=True))
        yield "top1", 100.0 * sums["right"] / count
        if self.num_classes > NUM_TOP:  # of fewer classes one is always right
            yield "top5", 100.0 * sums["right_of_five"] / count
        if self.coarse_of is not None:
            yield "coarse_top1", 100.0 * sums["right_coarse"] / count
            yield "coarse_summed_top1", 100.0 * sums["right_summed"] / count
        if self._classes[0].any():
            yield from self.class_scores().results()
        yield "calibration_error", self.calibration_error()
        yield "negative_log_likelihood", sums["negative_log_likelihood"] / count
        yield "count", float(count)

    @property
    def count(self) -> int:
        """The number of images that were counted."""
        return int(self._sums[0].item())

    def class_accuracy(self) -> Tensor:
        """Top-1 percentage of each class, [classes]; not a number where the class has no image."""
        images, _, right = self._classes
        return 100.0 * right / images

    def class_scores(self) -> ClassScores:
        """Precision, recall and F1 of each class."""
        return ClassScores(*self._classes.long().cpu().numpy())

    def confusion(self) -> Tensor:
        """Images of class i that were answered j, [classes, classes], whole numbers."""
        if self.num_classes > MAX_CONFUSION_CLASSES:
            raise ValueError(f"no confusion matrix is kept above {MAX_CONFUSION_CLASSES} classes")
        return self._confusion.long()

    def calibration_error(self) -> float:
        """The expected gap between confidence and accuracy over NUM_BINS bins of confidence, as a percentage."""
        images, confidence, right = self._bins
        return 100.0 * ((confidence - right).abs().sum() / images.sum()).item()

    def _valid_labels(self, targets: Tensor, logits: Tensor) -> Tensor:
        """The labels as a mask [batch, classes]."""
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(f"expected logits [batch, {self.num_classes}], got {list(logits.shape)}")
        if targets.shape == logits.shape:
            return targets > 0.5
        if targets.shape != logits.shape[:1] or targets.is_floating_point():
            raise ValueError(
                f"expected class indices [{len(logits)}] or a mask {list(logits.shape)}, "
                f"got {list(targets.shape)} of {targets.dtype}"
            )
        if len(targets) and int(targets.max()) >= self.num_classes:
            raise ValueError(f"label {int(targets.max())} is not one of the {self.num_classes} classes")
        return targets[:, None] == torch.arange(self.num_classes, device=targets.device)

    def _coarse_hits(
        self, probabilities: Tensor, answers: Tensor, valid: Tensor, coarse_of: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whether the coarse class of a valid label is that of the answer, and the most probable in sum, as 0 or 1."""
        num_coarse = int(coarse_of.max()) + 1
        summed = probabilities.new_zeros(len(probabilities), num_coarse).index_add_(1, coarse_of, probabilities)
        is_valid = torch.zeros_like(summed).index_add_(1, coarse_of, valid.double()) > 0
        of_answer = is_valid.gather(1, coarse_of[answers][:, None])[:, 0]
        return of_answer.double(), is_valid.gather(1, summed.argmax(dim=1, keepdim=True))[:, 0].double()

    def _count_bins(self, confidence: Tensor, is_right: Tensor) -> None:
        # Bins are open below and closed above. A confidence that is not a number goes to the first.
        index = (confidence.nan_to_num() * NUM_BINS).ceil().long().sub(1).clamp(0, NUM_BINS - 1)
        self._bins.index_add_(1, index, torch.stack([torch.ones_like(confidence), confidence, is_right]))

    def _count_classes(self, valid: Tensor, answers: Tensor) -> None:
        has_one = valid.sum(dim=1) == 1
        labels, answers = valid[has_one].int().argmax(dim=1), answers[has_one]
        ones = torch.ones_like(labels, dtype=torch.float64)
        self._classes[0].index_add_(0, labels, ones)
        self._classes[1].index_add_(0, answers, ones)
        self._classes[2].index_add_(0, labels, (labels == answers).double())
        if len(self._confusion):
            self._confusion.index_put_((labels, answers), ones, accumulate=True)
