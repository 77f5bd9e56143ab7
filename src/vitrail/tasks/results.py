"""What a task measures and answers: numbers that people read, answers about samples."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.quarantine import Problem


@dataclass(frozen=True)
class Measure:
    """One of the numbers that an evaluation gives, and how people read it."""

    key: str  # in metrics.jsonl
    label: str  # for people
    unit: str = "%"
    is_higher_better: bool = True
    digits: int = 2
    is_headline: bool = False  # whether it is told beside the first one in a few words about a run
    chart: str = ""  # title of the chart that it is drawn in; those of one title share it, none: not drawn
    is_quality: bool = True  # whether weights can be chosen by it; else the newest ones count as the best

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value of it is better than another; of what is no quality, any newer one is."""
        if not self.is_quality:
            return True
        return value > than if self.is_higher_better else value < than

    def show(self, value: float, *, digits: int | None = None) -> str:
        """A value with its unit."""
        number = f"{value:.{self.digits if digits is None else digits}f}"
        return f"{number} {self.unit}" if self.unit else number

    def brief(self, value: float) -> str:
        """A value in a few words about a run: of percent a tenth is enough."""
        return self.show(value, digits=1 if self.unit == "%" else None)

    @property
    def worst(self) -> float:
        """A value that any other is better than."""
        return -float("inf") if self.is_higher_better else float("inf")


class Evaluator(ABC):
    """A measurement on held-out data; every process takes part and gets the same numbers."""

    def begin(self, *, epoch: float, is_last: bool) -> None:  # noqa: B027 most measure the same every time
        """Hear how far the stage has come, and whether its last step is made, before it is measured."""

    @abstractmethod
    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Names and numbers, of the model as it is."""

    def write(self, folder: Path) -> None:  # noqa: B027 most leave nothing
        """Leave in the run's folder what the report reads of the last measurement; the main process calls it."""


class Answer(ABC):
    """What a trained model says about one sample."""

    place: str  # where the sample is

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """All of it, for JSON."""

    @abstractmethod
    def cells(self) -> dict[str, str]:
        """Columns and what they hold, for CSV."""

    @abstractmethod
    def __str__(self) -> str:
        """The answer in one line, for people."""

    def above(self, threshold: float) -> "Answer":
        """What is left of it at a probability of at least `threshold`, where it names several objects."""
        raise ValueError("a threshold chooses among the objects that a detector finds: this model finds none")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How good a trained model is on data."""

    figures: Mapping[str, float]  # by the keys of the task's measures
    record: Mapping[str, Any]  # all of it, for JSON
    text: str  # for people
    unread: tuple[Problem, ...] = ()  # samples that could not be read
    table: Sequence[Mapping[str, Any]] = ()  # rows of the part that is a table, for CSV: of a classifier its classes

    def __repr__(self) -> str:
        return self.text
