"""What a gallery says about an image: what is nearest, what it shows, and whether it is like anything at all."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.ranking import RANKINGS, condition, condition_by_oracle
from vitrail.gallery.answer_rules import combine, override, vote
from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.store import ImageTable, Neighbours

UNKNOWN = "unknown"  # the answer for an image that is far from everything
UNNAMED = "unnamed"  # the class of images that have no label of the level that is asked for
_NOBODY = torch.zeros(0, dtype=torch.int64)  # the coarse classes of no images: the table knows those of its own


@dataclass(frozen=True)
class Hit:
    """An image of the gallery that a search found."""

    path: str
    labels: Mapping[str, str | None]  # for each level
    cosine: float
    score: float  # what it was ranked by
    row: int  # its place in the gallery at this moment


@dataclass(frozen=True)
class GalleryAnswer:
    """An answer to what an image shows."""

    label: str  # the most probable class, or `unknown`
    is_unknown: bool
    cosine: float  # of the nearest image
    probabilities: tuple[tuple[str, float], ...]  # of the classes, the most probable first
    class_cosine: float | None = None  # to the mean of the class it is most like; None where no image has a label


class Judgement(NamedTuple):
    """What a gallery says about some queries, as numbers."""

    probabilities: Tensor  # [queries, classes + 1]; the last is that of images without a label
    nearest: Tensor  # [queries]: the cosine of the nearest image
    likeness: Tensor  # [queries]: the cosine to the mean of the class they are most like; -inf where there is none
    is_unknown: Tensor  # bool [queries]


class Contents:
    """All images of one state of a gallery, and what they say about others."""

    def __init__(self, table: ImageTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def facts(self) -> GalleryFacts:
        """What the gallery is made of."""
        return self.table.facts

    @cached_property
    def rows(self) -> Tensor:
        """The rows int64 of all images, in their order."""
        return self.table.find_rows({})

    @cached_property
    def vectors(self) -> Tensor:
        """The embeddings [images, dim], of length 1."""
        return self.table.vectors_of(self.rows)

    @cached_property
    def labels(self) -> dict[str, Tensor]:
        """The labels of each level, int64 [images]; -1 without a label."""
        return dict(zip(self.facts.levels, self.table.labels_of(self.rows).unbind(dim=1), strict=True))

    def classes(self, level: str) -> tuple[str, ...]:
        """The classes of a level, also those that have lost their last image."""
        return self.facts.levels[level]

    def class_index(self, level: str, name: str) -> int:
        """The place of a class that has images."""
        if name not in self.counts(level):
            raise ValueError(f"no images of {level} {name!r} in the gallery; {self.hint(level, name)}")
        return self.classes(level).index(name)

    def hint(self, level: str, name: str) -> str:
        """What may have been meant by a class that has no images."""
        counts = self.counts(level)
        if not counts:
            return "no image has a label yet: suggest without coarse groups all of them, and name names a group"
        near = difflib.get_close_matches(name, counts, n=1)
        return f"did you mean {near[0]!r}?" if near else f"there are: {_some(list(counts))}"

    def counts(self, level: str) -> dict[str, int]:
        """The classes that have images, with their number."""
        numbers = [0] * (len(self.classes(level)) + 1)  # the last is where -1 leads
        column = list(self.facts.levels).index(level)
        for labels, count in self.table.label_sets().items():
            numbers[labels[column]] += count
        return {name: count for name, count in zip(self.classes(level), numbers, strict=False) if count}

    def path(self, row: int) -> str:
        """Where the image was."""
        return self.table.paths_of([row])[0]

    def paths(self) -> Iterator[str]:
        """The paths of all images, in their order."""
        yield from self.table.paths_of(self.rows.tolist())

    def thumbnail(self, row: int) -> bytes:
        """The image's thumbnail, a small JPEG; empty where there is none."""
        return self.table.thumbnails_of([row])[0]

    def name_labels(self, labels: Sequence[int]) -> dict[str, str | None]:
        """The names of an image's labels."""
        pairs = zip(self.facts.levels.items(), labels, strict=True)
        return {level: names[label] if label >= 0 else None for (level, names), label in pairs}

    def make_bonus(self, ranking: str, queries: Tensor, *, coarse: str | None) -> Tensor | None:
        """What the ranking adds to the cosines [queries, coarse classes + 1]; `coarse` is what a person says."""
        if ranking not in RANKINGS:
            raise ValueError(f"rank must be one of {', '.join(RANKINGS)}, not {ranking!r}")
        if ranking == "cosine":
            return None
        level = self.facts.coarse
        if level is None:
            raise ValueError(f"the gallery has no coarse labels to rank by: use rank cosine, not {ranking}")
        if ranking == "conditional":
            return condition(self.table.coarse_probabilities(queries), _NOBODY).bonus
        if coarse is None:
            raise ValueError("the oracle ranking needs the coarse class of the image: --coarse NAME")
        known = torch.full((len(queries),), self.class_index(level, coarse))
        return condition_by_oracle(known, _NOBODY, num_classes=len(self.classes(level))).bonus

    def nearest(self, queries: Tensor, *, count: int, bonus: Tensor | None = None) -> Neighbours:
        """The best images for each query."""
        if not len(self):
            raise ValueError(f"the gallery is empty: {self.table.place}: add images with `vitrail gallery add`")
        return self.table.nearest(queries, count=count, bonus=bonus)

    def search(self, queries: Tensor, *, top: int, ranking: str, coarse: str | None) -> list[list[Hit]]:
        """The images that rank first for each query [queries, dim] of length 1."""
        _check_top(top)
        found = self.nearest(queries, count=top, bonus=self.make_bonus(ranking, queries, coarse=coarse))
        hits = []
        for scores, cosines, rows, labels in zip(*(part.tolist() for part in found), strict=True):
            paths = self.table.paths_of(rows)
            lines = zip(paths, labels, cosines, scores, rows, strict=True)
            hits.append([Hit(path, self.name_labels(own), cosine, s, row) for path, own, cosine, s, row in lines])
        return hits

    def classify(
        self, queries: Tensor, *, top: int, coarse: str | None, rule: str | None = None
    ) -> list[GalleryAnswer]:
        """What each query [queries, dim] of length 1 shows, by the gallery's rule or another."""
        _check_top(top)
        names = (*self.classes(self.facts.fine), UNNAMED)
        judged = self.judge(queries, coarse=coarse, rule=rule)
        best = judged.probabilities.topk(min(top, len(names)), dim=1)
        found = []
        for values, places, nearest, likeness, is_unknown in zip(
            best.values.tolist(),
            best.indices.tolist(),
            judged.nearest.tolist(),
            judged.likeness.tolist(),
            judged.is_unknown.tolist(),
            strict=True,
        ):
            answers = tuple((names[place], p) for place, p in zip(places, values, strict=True) if p > 0)
            label = UNKNOWN if is_unknown else answers[0][0]
            found.append(
                GalleryAnswer(label, is_unknown, nearest, answers, likeness if math.isfinite(likeness) else None)
            )
        return found

    def judge(self, queries: Tensor, *, coarse: str | None = None, rule: str | None = None) -> Judgement:
        """Probabilities by the gallery's rule or another; with `coarse`, only images of that class answer."""
        manifest = self.facts
        chosen = override(manifest.rule, rule)
        num_classes = len(self.classes(manifest.fine))
        bonus = self.make_bonus("cosine" if coarse is None else "oracle", queries, coarse=coarse)
        known = None if coarse is None else self.class_index(str(manifest.coarse), coarse)
        similarities = functional.pad(self.table.means(known).similarities(queries), (0, 1), value=-torch.inf)
        likeness = similarities.amax(dim=1)
        if not bool(likeness.isfinite().all()):  # no image has a label
            chosen = override(chosen, "neighbours")
        found = self.nearest(queries, count=manifest.neighbours, bonus=bonus)
        cosines = found.cosines
        if known is not None:
            column = list(manifest.levels).index(str(manifest.coarse))
            cosines = cosines.where(found.labels[:, :, column] == known, -torch.inf)
        votes = vote(cosines, found.labels[:, :, 0].remainder(num_classes + 1), num_classes=num_classes + 1)
        nearest = cosines.amax(dim=1)
        return Judgement(combine(chosen, similarities, votes), nearest, likeness, self._reject(nearest, likeness))

    def _reject(self, nearest: Tensor, likeness: Tensor) -> Tensor:
        """Which queries are unknown: too far from every class, or in galleries of before from every image."""
        threshold = self.facts.threshold
        if threshold is None:
            return torch.zeros_like(nearest, dtype=torch.bool)
        if threshold.class_cosine is not None:
            return likeness < threshold.class_cosine
        return nearest < threshold.cosine


def _check_top(top: int) -> None:
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")


def _some(names: list[str], *, limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
