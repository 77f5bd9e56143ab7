"""What probes share: labelled embeddings, how answers are measured, what is held out, and standardised features."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Level
from vitrail.evaluation.average_precision import AveragePrecisionMeter
from vitrail.evaluation.classify import NUM_TOP
from vitrail.evaluation.features import Embeddings

HELD_OUT_SHARE = 0.2  # of the training images of every class, to choose a probe's setting by
_CHUNK = 16384  # rows that are turned into float64 at a time
_TINY = 1e-6  # a channel that varies less than this share of the typical one says nothing


@dataclass(frozen=True, eq=False)
class Labelled:
    """Embeddings and what the images show."""

    vectors: Tensor  # float32 [images, dim]
    targets: Tensor  # int64 [images]; or float32 [images, classes] of 0 and 1, where an image may have several classes
    num_classes: int

    def __post_init__(self) -> None:
        if len(self.vectors) != len(self.targets):
            raise ValueError(f"{len(self.vectors)} embeddings and {len(self.targets)} labels do not belong together")
        num_bad = int((~self.vectors.isfinite().all(dim=1)).sum())
        if num_bad:
            raise ValueError(
                f"the embeddings of {num_bad:,} of {len(self.vectors):,} images are not finite: try precision=fp32"
            )

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def is_multiple(self) -> bool:
        """Whether an image may have several classes."""
        return self.targets.ndim == 2

    @property
    def masks(self) -> Tensor:
        """The targets as float32 [images, classes] of 0 and 1."""
        if self.is_multiple:
            return self.targets
        return torch.nn.functional.one_hot(self.targets, self.num_classes).float()

    def choose(self, places: Tensor) -> "Labelled":
        """Some of the images."""
        return Labelled(self.vectors[places], self.targets[places], self.num_classes)


def label(embeddings: Embeddings, level: Level) -> Labelled:
    """Embeddings with the labels of one level; images without a label are left out."""
    targets = torch.from_numpy(np.array(level.labels))[embeddings.indices]
    is_known = targets >= 0 if targets.ndim == 1 else torch.ones(len(targets), dtype=torch.bool)
    targets = targets.float() if targets.ndim == 2 else targets.long()
    return Labelled(embeddings.vectors[is_known], targets[is_known], len(level.classes))


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A probe that is one linear layer on the embeddings as the model gives them."""

    weight: Tensor  # float32 [classes, dim]
    bias: Tensor  # float32 [classes]

    def __call__(self, vectors: Tensor) -> Tensor:  # [images, dim] -> [images, classes]
        return torch.nn.functional.linear(vectors, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A probe that has seen its training images."""

    scores: Callable[[Tensor], Tensor]  # [images, dim] -> [images, classes]; -inf for a class that is out of question
    setting: Mapping[str, float]  # what was chosen, or given
    held_out: float | None = None  # the figure that the setting was chosen by
    linear: LinearClassifier | None = None  # the same probe as one linear layer, where it is one


@dataclass(frozen=True, eq=False)
class Standardization:
    """Every channel with mean 0 and deviation 1 over the training images; a channel that is constant becomes 0."""

    mean: Tensor  # float64 [dim]
    scale: Tensor  # float64 [dim]: 1 / deviation

    @classmethod
    def of(cls, vectors: Tensor) -> "Standardization":
        """What standardises these embeddings."""
        mean = sum(chunk.double().sum(dim=0) for chunk in vectors.split(_CHUNK)) / len(vectors)
        variance = sum((chunk.double() - mean).square().sum(dim=0) for chunk in vectors.split(_CHUNK)) / len(vectors)
        deviation = variance.sqrt()
        is_constant = deviation <= _TINY * deviation.median().clamp(min=torch.finfo(torch.float32).tiny)
        return cls(mean, torch.where(is_constant, 0.0, 1.0 / deviation.masked_fill(is_constant, 1.0)))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Embeddings standardised, in float64."""
        return (vectors.double() - self.mean) * self.scale

    def absorb(self, weight: Tensor, bias: Tensor) -> LinearClassifier:
        """A linear layer on standardised embeddings ([classes, dim], [classes]) as one on those of the model."""
        own_weight = weight * self.scale
        return LinearClassifier(own_weight.float(), (bias - own_weight @ self.mean).float())


def measure(scores: Tensor, targets: Tensor) -> dict[str, float]:
    """Top-1, and of more than five classes top-5, in percent.

    It is the mean average precision where an image may have several classes.
    """
    if targets.ndim == 2:
        meter = AveragePrecisionMeter(scores.shape[1])
        meter.update(scores, targets)
        return dict(meter.results())
    values, answers = scores.topk(min(NUM_TOP, scores.shape[1]), dim=1)
    is_hit = (answers == targets[:, None]) & (values > -torch.inf)
    counts = {"top1": is_hit[:, 0].sum()}
    if scores.shape[1] > NUM_TOP:
        counts["top5"] = is_hit.sum()
    return {name: 100.0 * count.item() / len(targets) for name, count in counts.items()}


def measure_main(scores: Tensor, targets: Tensor) -> float:
    """The figure that settings are chosen by: top-1, or the mean average precision."""
    return next(iter(measure(scores, targets).values()))


def hold_out(data: Labelled, *, share: float = HELD_OUT_SHARE, seed: int = 0) -> tuple[Labelled, Labelled]:
    """Training images to fit with and others to choose by: `share` of every class, and always one of each to fit with.

    Where an image may have several classes the images are drawn without regard to them.
    """
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).to(data.vectors.device)
    if data.is_multiple:
        is_held = torch.arange(len(data), device=shuffled.device) < round(share * len(data))
    else:
        shuffled = shuffled[data.targets[shuffled].argsort(stable=True)]  # class by class
        counts = torch.bincount(data.targets, minlength=data.num_classes)
        classes = data.targets[shuffled]
        place_in_class = torch.arange(len(data), device=classes.device) - (counts.cumsum(dim=0) - counts)[classes]
        num_held = (share * counts).round().long().clamp(min=1).minimum(counts - 1)
        is_held = place_in_class < num_held[classes]
    if not is_held.any():
        raise ValueError("no class has two training images: there is nothing to choose a probe's setting by")
    fit, held = shuffled[~is_held].sort().values, shuffled[is_held].sort().values
    return data.choose(fit), data.choose(held)
