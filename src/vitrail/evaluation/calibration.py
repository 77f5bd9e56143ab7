"""Scores made probabilities: the scale, an inverse temperature, that suits held-out images best (Guo et al. 2017)."""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.probe_data import LinearClassifier

SCALES = tuple(10.0 ** (step / 20.0) for step in range(-60, 61))


class FittedScale(NamedTuple):
    """The factor that scores are multiplied with, and the loss of held-out images with it."""

    scale: float
    loss: float

    def apply(self, classifier: LinearClassifier) -> LinearClassifier:
        """The classifier whose scores are logits."""
        return LinearClassifier(self.scale * classifier.weight, self.scale * classifier.bias)


def calibrate(scores: Tensor, targets: Tensor) -> FittedScale:
    """The scale with the largest likelihood of targets: class indices, or masks of 0 and 1, each class by itself."""
    judge = functional.binary_cross_entropy_with_logits if targets.ndim == 2 else functional.cross_entropy
    losses = [judge(scale * scores, targets).item() for scale in SCALES]
    best = min(range(len(losses)), key=losses.__getitem__)
    return FittedScale(SCALES[best], losses[best])
