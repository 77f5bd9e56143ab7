"""What a classifier says about images: the most probable classes of each."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.quarantine import Problem
from vitrail.inference.folding import as_folded
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.tasks.results import Answer


@dataclass(frozen=True)
class ClassAnswer(Answer):
    """Classes of an image and their probabilities, the most probable first.

    Where an image may have several classes, each probability is that of the class alone, and they have no given sum.
    """

    place: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.classes[0]

    def record(self) -> dict[str, Any]:
        """The path and its answers."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return {"path": self.place, "answers": [{"class": name, "probability": round(p, 6)} for name, p in pairs]}

    def cells(self) -> dict[str, str]:
        """The path, then a class and its probability by turns."""
        cells = {"path": self.place}
        for number, (name, probability) in enumerate(zip(self.classes, self.probabilities, strict=True), start=1):
            cells |= {f"class_{number}": name, f"probability_{number}": f"{probability:.6f}"}
        return cells

    def __str__(self) -> str:
        pairs = zip(self.classes, self.probabilities, strict=True)
        return "  ".join([self.place, *(f"{name} {probability:.1%}" for name, probability in pairs)])


def answer_with_classes(
    trained: Trained, data: Dataset, *, passes: Passes, top: int, note_unread: Callable[[Problem], object]
) -> Iterator[ClassAnswer]:
    """The most probable classes of each image that can be read, in the order of the data."""
    for logits, batch in passes.ask(
        dataclasses.replace(trained, model=as_folded(trained.model)), note_unread=note_unread
    ):
        yield from name_probable(trained, logits, places=[data.locate(at) for at in batch.indices.tolist()], top=top)


def name_probable(trained: Trained, logits: Tensor, *, places: Sequence[str], top: int) -> list[ClassAnswer]:
    """The most probable classes by logits [images, classes] of images at these places."""
    names = trained.class_names
    probabilities = logits.sigmoid() if trained.is_multiple else logits.softmax(dim=1)
    values, indices = (column.tolist() for column in probabilities.topk(min(top, len(names)), dim=1))
    return [
        ClassAnswer(place, tuple(names[index] for index in row), tuple(of_row))
        for place, row, of_row in zip(places, indices, values, strict=True)
    ]
