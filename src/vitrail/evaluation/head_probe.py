"""The two classifiers that the thesis trains for transfer, FC and MLP (2.4.6 and 2.5.4), on embeddings.

The thesis says: FC is a linear layer, MLP two of them with a batch normalisation and a ReLU between; 240 epochs, a
cosine schedule from 0.01 and batches of 512 images; its other trainings are by SGD with Nesterov momentum (2.4.2).
It does not say how wide the MLP is, or its weight decay. Taken here: a hidden layer twice as wide as the embedding
(the projector of table 2.7, whose 9.4 million parameters are those of 2048 -> 4096 -> 256), momentum 0.9, weight decay
1e-4, no dropout. The trunk is fixed and the images are not augmented, so the embeddings are computed once; they are
standardised, because trunks differ in their scale. It is 120 epochs here: on held-out training images of pets (three
draws) 60, 120 and 240 epochs gave FC 57.7, 59.0 and 59.4 % and MLP 59.9, 60.5 and 59.4 %, and 120 take half the time.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.evaluation.probe_data import Fitted, Labelled, Standardization

_SCORE_CHUNK = 16384


@dataclass(frozen=True)
class HeadTraining:
    """How a head is trained on embeddings."""

    epochs: int = 120
    least_steps: int = 400  # small data is seen more often, until it has made so many steps
    lr: float = 0.01  # at the first step; a cosine takes it to 0
    batch_size: int = 512
    momentum: float = 0.9
    weight_decay: float = 1e-4
    width: int = 2  # of the MLP's hidden layer, in widths of the embedding
    seed: int = 0


def fit_fc(train: Labelled, *, training: HeadTraining | None = None) -> Fitted:
    """A linear layer, trained by SGD."""
    training = training or HeadTraining()
    standardize = Standardization.of(train.vectors)
    with _seeded(training.seed):
        head = nn.Linear(train.vectors.shape[1], train.num_classes)
    epochs = _train(head, standardize(train.vectors).float(), train, training)
    classifier = standardize.absorb(head.weight.detach().double(), head.bias.detach().double())
    return Fitted(classifier, {"epochs": epochs, "lr": training.lr}, linear=classifier)


def fit_mlp(train: Labelled, *, training: HeadTraining | None = None) -> Fitted:
    """Two linear layers with a batch normalisation and a ReLU between them, trained by SGD."""
    training = training or HeadTraining()
    standardize = Standardization.of(train.vectors)
    dim = train.vectors.shape[1]
    with _seeded(training.seed):
        head = nn.Sequential(
            nn.Linear(dim, training.width * dim),
            nn.BatchNorm1d(training.width * dim),
            nn.ReLU(),
            nn.Linear(training.width * dim, train.num_classes),
        )
    epochs = _train(head, standardize(train.vectors).float(), train, training)

    @torch.no_grad()
    def score(vectors: Tensor) -> Tensor:
        return torch.cat([head(standardize(chunk).float()) for chunk in vectors.split(_SCORE_CHUNK)])

    return Fitted(score, {"epochs": epochs, "lr": training.lr, "hidden": training.width * dim})


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Initial weights of that seed; the random numbers of others go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _train(head: nn.Module, inputs: Tensor, train: Labelled, training: HeadTraining) -> int:
    """Train, and say for how many epochs.

    Batches are drawn anew in every epoch; what does not fill the last one waits for the next epoch.
    """
    head.to(inputs.device).train()
    generator = torch.Generator().manual_seed(training.seed)
    batch_size = min(training.batch_size, len(inputs))
    steps_per_epoch = len(inputs) // batch_size
    epochs = max(training.epochs, math.ceil(training.least_steps / steps_per_epoch))
    total = epochs * steps_per_epoch
    optimizer = torch.optim.SGD(
        head.parameters(),
        lr=training.lr,
        momentum=training.momentum,
        nesterov=training.momentum > 0.0,
        weight_decay=training.weight_decay,
    )
    for step in range(total):
        if step % steps_per_epoch == 0:
            order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
            batches = order[: steps_per_epoch * batch_size].view(steps_per_epoch, batch_size)
        chosen = batches[step % steps_per_epoch]
        optimizer.param_groups[0]["lr"] = 0.5 * training.lr * (1.0 + math.cos(math.pi * step / total))
        loss = _loss(head(inputs[chosen]), train.targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    head.eval()
    return epochs


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim == 2:
        return functional.binary_cross_entropy_with_logits(logits, targets) * targets.shape[1]  # the sum over classes
    return functional.cross_entropy(logits, targets)
