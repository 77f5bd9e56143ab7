"""How often classifiers disagree, with each other and with the labels (thesis table 3.4)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def disagreement(answers: Tensor) -> Tensor:
    """The share of images that two classifiers put into different classes, for all pairs: [rows, rows] in float64.

    `answers` are class indices [rows, images]; the labels may be one of the rows. An image with an index below 0 in any
    row is left out of all pairs, so that every number is of the same images.
    """
    if answers.ndim != 2 or answers.is_floating_point():
        raise ValueError(f"expected class indices [rows, images], got {list(answers.shape)} of {answers.dtype}")
    counted = answers[:, (answers >= 0).all(dim=0)]
    if counted.shape[1] == 0:
        raise ValueError("nothing to compare: no image has a label and an answer of each model")
    return torch.stack([(counted != row).double().mean(dim=1) for row in counted])


class ClassIndex:
    """One number for each class name, the same for all models; those of the data come first and keep theirs."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(classes)}

    def numbers_of(self, classes: Sequence[str]) -> Tensor:
        """A number for each class of a model; classes that were not known get new ones."""
        return torch.tensor([self._numbers.setdefault(name, len(self._numbers)) for name in classes])
