"""What a model says about the images that `vitrail retrieve` ranks and asks with."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrail.inference.passes import Passes, make_extraction, show_progress

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.data.contract import Dataset
    from vitrail.evaluation.features import Embeddings
    from vitrail.evaluation.retrieval import Levelled
    from vitrail.evaluation.together import Together
    from vitrail.inference.trained import Trained

    _Rows = tuple[Tensor, Tensor]  # places in the data, and the probabilities there

_NAMED = 10  # images that could not be read


@dataclass(frozen=True, eq=False)
class RetrievalTask:
    """What every run is asked."""

    train: "Dataset"
    val: "Dataset"
    levels: tuple[str, ...]  # from the coarsest to the finest
    settings: Mapping[str, Any]
    queries: tuple[int, ...] | None  # places in val of the images whose ranked lists are drawn; None: of some
    world: "Together"  # processes that share the images of each pass; the main one measures

    @property
    def coarse(self) -> str | None:
        """The level that the command line says to condition by."""
        return None if "coarse" not in self.settings else str(self.settings["coarse"])


class ModelAnswers:
    """What one model says about the images of both splits: its embeddings, and its classifier's probabilities."""

    def __init__(self, name: str, trained: "Trained", task: RetrievalTask) -> None:
        self.name, self.trained, self.task = name, trained, task
        self._embeddings: dict[str, Embeddings] = {}
        self._probabilities: dict[tuple[str, str], Tensor | None] = {}

    @property
    def num_unread(self) -> int:
        """Images that could not be read."""
        return sum(len(found.unread) for found in self._embeddings.values())

    def embed(self, data: "Dataset") -> "Levelled":
        """Embeddings of length 1 with the labels of every level."""
        import numpy as np
        import torch

        from vitrail.evaluation.features import embed
        from vitrail.evaluation.retrieval import Levelled

        passes = Passes(data, self.task.levels[0], self.task.settings, world=self.task.world)
        cache = self.task.settings.get("cache")
        with show_progress(f"{self.name}: embeddings of {data.split}", total=len(data)) as advance:
            found = embed(
                make_extraction(self.trained, passes),
                data,
                cache=None if cache is None else str(cache),
                advance=advance,
            )
        for problem in found.unread[:_NAMED]:
            print(f"left out: {problem.path} {problem.detail}", file=sys.stderr)
        if not bool(found.vectors.isfinite().all()):
            raise ValueError(f"embeddings of {data.name} by {self.name} are not finite: try precision=fp32")
        self._embeddings[data.split] = found
        levels = {name: data.level(name) for name in self.task.levels}
        labels = {name: torch.from_numpy(np.array(level.labels))[found.indices] for name, level in levels.items()}
        counts = {name: len(level.classes) for name, level in levels.items()}
        return Levelled.of(found.vectors, labels, num_classes=counts)

    def places(self, *datasets: "Dataset") -> "tuple[Tensor, ...]":
        """Where the embedded images are in each data set."""
        return tuple(self._embeddings[data.split].indices for data in datasets)

    def classify(self, data: "Dataset", level: str) -> "Tensor | None":
        """Probabilities [embedded images, classes] of a level, if the model has a classifier of just these classes.

        Every process computes its share, and the main one has them all; the others have none.
        """
        key = data.split, level
        if key not in self._probabilities:
            self._probabilities[key] = self._run_classifier(data, level)
        return self._probabilities[key]

    def _run_classifier(self, data: "Dataset", level: str) -> "Tensor | None":
        import torch

        from vitrail.inference.folding import as_folded

        trained, classes = self.trained, data.level(level).classes
        known = trained.classes
        if known is None or len(known) != trained.num_classes or set(known) != set(classes) or trained.level != level:
            return None
        order = torch.tensor([known.index(name) for name in classes])
        passes = Passes(data, level, self.task.settings, world=self.task.world)
        model = dataclasses.replace(trained, model=as_folded(trained.model))
        title = f"{self.name}: classifier on {data.split}"
        answers = passes.answers(model, title=title, note_unread=lambda problem: None)
        own = ((batch.indices, logits.softmax(dim=1).cpu()[:, order]) for logits, batch in answers)
        is_main = self.task.world.is_main
        table = torch.zeros(len(data) if is_main else 0, len(classes))
        for indices, probabilities in _gather_all(own, self.task.world):
            if is_main:
                table[indices] = probabilities
        return table[self._embeddings[data.split].indices] if is_main else None


def _gather_all(own: "Iterator[_Rows]", world: "Together") -> "Iterator[_Rows]":
    """What all processes have, some batches at a time, however many each has."""
    while any(everyone := world.gather(next(own, None))):
        yield from filter(None, everyone)
