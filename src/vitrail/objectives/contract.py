"""What every objective takes and gives: Losses, and the protocol the training loop calls."""

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from vitrail.data.contract import Batch


class Losses(NamedTuple):
    """What a batch costs."""

    total: Tensor  # a scalar to call backward on
    parts: dict[str, Tensor]  # detached scalars by name, logged as they are


class Objective(Protocol):
    """A training procedure: it runs the model on a batch of prepared images and says what the answers cost.

    The images are floating point, normalised and blended; the targets are whatever the objective was made for.
    """

    def __call__(self, model: nn.Module, batch: Batch) -> Losses: ...
