"""Where a stage is computed, as its task sees it: device, precision, the other processes, who shows progress."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from vitrail.evaluation.together import Alone, Together

Item = TypeVar("Item")


class Reporter(Protocol):
    """Who shows how far something has come."""

    def evaluating(self, batches: Iterable[Item], total: int) -> Iterator[Item]: ...

    def counting(self, name: str, *, total: int) -> AbstractContextManager[Callable[[int], object]]: ...

    def say(self, text: str) -> None: ...


class Silence:
    """A reporter that shows nothing."""

    def evaluating(self, batches: Iterable[Item], total: int) -> Iterator[Item]:
        """The batches as they come."""
        return iter(batches)

    def counting(self, name: str, *, total: int) -> AbstractContextManager[Callable[[int], object]]:
        """A function that counts for nobody."""
        return nullcontext(lambda count: None)

    def say(self, text: str) -> None:
        """Say nothing."""


@dataclass(frozen=True, eq=False)
class Site:
    """Where a stage is computed; by default here, by this process alone and without a word."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32  # that products are computed in
    world: Together = field(default_factory=Alone)
    reporter: Reporter = field(default_factory=Silence)
    seed: int = 0  # of the stage
    stage: int = 0
    folder: Path | None = None  # of the run; None: nothing is written, as for a plan
    num_lanes: int | None = None  # threads that evaluate batches side by side on a CPU; None: as many as torch has
    is_sharded: bool = False  # whether all processes must take part in every forward pass
