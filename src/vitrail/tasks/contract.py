"""What every objective takes and gives: Losses, and the protocol the training loop calls."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from vitrail.data.contract import ImageBatch as Batch


class Losses(NamedTuple):
    """What a batch costs."""

    total: Tensor  # a scalar to call backward on
    parts: dict[str, Tensor]  # detached scalars by name, logged as they are


class Objective(Protocol):
    """A training procedure: it runs the model on a batch of prepared images and says what the answers cost.

    The images are floating point, normalised and blended; the targets are whatever the objective was made for.
    """

    def __call__(self, model: nn.Module, batch: Batch) -> Losses: ...


@runtime_checkable
class Stateful(Protocol):
    """An objective that remembers something from step to step: a memory of embeddings, a target network.

    Calls of a step's micro-batches leave what they saw to the end of the step. After the optimizer's step comes
    `after_step`, or `skip_step` where no step was made (a loss that is not finite, a trial of the batch size). Between
    steps the state is all that the rest of a run depends on, so it belongs into checkpoints. Where several processes
    train together, all of them make every one of these calls, in the same order.
    """

    def after_step(self, model: nn.Module) -> None:
        """Take in what the micro-batches left and the model's new weights; the bare model, not one that wraps it."""

    def skip_step(self) -> None:
        """Forget what the micro-batches left."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: plain tensors, numbers and dicts, whole also where processes share it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, with any number of processes."""
