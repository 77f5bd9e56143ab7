"""What a gallery says about an image: what is nearest, what it shows, and whether it is like anything at all."""

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.knn import find_neighbours
from vitrail.evaluation.ranking import RANKINGS, Conditioning, condition, condition_by_oracle, predict_coarse
from vitrail.gallery.answer_rules import ClassMeans, combine, override, vote
from vitrail.gallery.gallery_damage import compare, damage
from vitrail.gallery.index import ApproximateIndex
from vitrail.gallery.store import State

UNKNOWN = "unknown"  # the answer for an image that is far from everything
UNNAMED = "unnamed"  # the class of images that have no label of the level that is asked for


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


@dataclass(frozen=True, eq=False)
class Contents:
    """All images of one state of a gallery, as one table."""

    state: State

    def __len__(self) -> int:
        return len(self.state)

    @cached_property
    def vectors(self) -> Tensor:
        """The embeddings [images, dim], of length 1; read from the disk where they are in one file."""
        parts = self.state.parts
        if not parts:
            return torch.zeros(0, self.state.manifest.dim)
        return parts[0].vectors if len(parts) == 1 else torch.cat([part.vectors for part in parts])

    @cached_property
    def labels(self) -> dict[str, Tensor]:
        """The labels of each level, int64 [images]; -1 without a label."""
        nothing = torch.zeros(0, len(self.state.manifest.levels), dtype=torch.int32)
        joined = torch.cat([nothing, *(part.labels for part in self.state.parts)]).long()
        return dict(zip(self.state.manifest.levels, joined.unbind(dim=1), strict=True))

    def classes(self, level: str) -> tuple[str, ...]:
        """The classes of a level, also those that have lost their last image."""
        return self.state.manifest.levels[level]

    def class_index(self, level: str, name: str) -> int:
        """The place of a class that has images."""
        if name not in self.counts(level):
            raise ValueError(f"no images of {level} {name!r} in the gallery; {self.hint(level, name)}")
        return self.classes(level).index(name)

    def hint(self, level: str, name: str) -> str:
        """What may have been meant by a class that has no images."""
        counts = self.counts(level)
        near = difflib.get_close_matches(name, counts, n=1)
        return f"did you mean {near[0]!r}?" if near else f"there are: {_some(list(counts))}"

    def counts(self, level: str) -> dict[str, int]:
        """The classes that have images, with their number."""
        labels = self.labels[level]
        numbers = torch.bincount(labels[labels >= 0], minlength=len(self.classes(level))).tolist()
        return {name: count for name, count in zip(self.classes(level), numbers, strict=True) if count}

    def path(self, row: int) -> str:
        """Where the image was."""
        part, place = self._place(row)
        return self.state.parts[part].paths[place]

    def thumbnail(self, row: int) -> bytes:
        """The image's thumbnail, a small JPEG; empty where there is none."""
        part, place = self._place(row)
        return self.state.parts[part].thumbnail(place)

    def describe(self, row: int) -> dict[str, str | None]:
        """The image's labels."""
        numbers = ((level, int(labels[row])) for level, labels in self.labels.items())
        return {level: self.classes(level)[number] if number >= 0 else None for level, number in numbers}

    def paths(self) -> Iterator[str]:
        """The paths of all images, in their order."""
        return (path for part in self.state.parts for path in part.paths)

    def make_conditioning(self, ranking: str, queries: Tensor, *, coarse: str | None) -> Conditioning | None:
        """What the ranking adds to the cosines; `coarse` is the class that a person says for the oracle."""
        if ranking not in RANKINGS:
            raise ValueError(f"rank must be one of {', '.join(RANKINGS)}, not {ranking!r}")
        if ranking == "cosine":
            return None
        level = self.state.manifest.coarse
        if level is None:
            raise ValueError(f"the gallery has no coarse labels to rank by: use rank cosine, not {ranking}")
        labels, num_classes = self.labels[level], len(self.classes(level))
        if ranking == "conditional":
            return condition(predict_coarse(queries, self.vectors, labels, num_classes=num_classes), labels)
        if coarse is None:
            raise ValueError("the oracle ranking needs the coarse class of the image: --coarse NAME")
        known = torch.full((len(queries),), self.class_index(level, coarse))
        return condition_by_oracle(known, labels, num_classes=num_classes)

    def nearest(
        self, queries: Tensor, *, count: int, conditioning: Conditioning | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best for each query. An approximate index serves only the cosine; else it is exact."""
        if not len(self):
            raise ValueError(f"the gallery is empty: {self.state.folder}: add images with `vitrail gallery add`")
        count = min(count, len(self))
        if conditioning is not None or self._index is None:
            return find_neighbours(queries, self.vectors, count=count, conditioning=conditioning)
        num_covered = self._num_covered
        cosines, rows = self._index.search(queries, count=min(count, num_covered))
        if bool((rows < 0).any()):  # it looks at too few images to find so many
            return find_neighbours(queries, self.vectors, count=count)
        if num_covered < len(self):  # images that were added since the index was made
            newest = self.vectors[num_covered:]
            more, places = find_neighbours(queries, newest, count=min(count, len(newest)))
            cosines, rows = torch.cat([cosines, more], dim=1), torch.cat([rows, places + num_covered], dim=1)
        cosines, order = cosines.topk(min(count, cosines.shape[1]), dim=1)
        return cosines, rows.gather(1, order)

    def search(self, queries: Tensor, *, top: int, ranking: str, coarse: str | None) -> list[list[Hit]]:
        """The images that rank first for each query [queries, dim] of length 1."""
        _check_top(top)
        conditioning = self.make_conditioning(ranking, queries, coarse=coarse)
        scores, rows = self.nearest(queries, count=top, conditioning=conditioning)
        found = []
        for query, own_scores, own_rows in zip(queries, scores, rows.tolist(), strict=True):
            cosines = self.vectors[torch.tensor(own_rows)].float() @ query
            triples = zip(own_rows, cosines.tolist(), own_scores.tolist(), strict=True)
            found.append([Hit(self.path(row), self.describe(row), cosine, s, row) for row, cosine, s in triples])
        return found

    def classify(
        self, queries: Tensor, *, top: int, coarse: str | None, rule: str | None = None
    ) -> list[GalleryAnswer]:
        """What each query [queries, dim] of length 1 shows, by the gallery's rule or another."""
        _check_top(top)
        names = (*self.classes(self.state.manifest.fine), UNNAMED)
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
        manifest = self.state.manifest
        chosen = override(manifest.rule, rule)
        labels, num_classes = self.labels[manifest.fine], len(self.classes(manifest.fine))
        conditioning = self.make_conditioning("cosine" if coarse is None else "oracle", queries, coarse=coarse)
        means, is_allowed = self._means, None
        if coarse is not None:
            assert manifest.coarse is not None
            is_allowed = self.labels[manifest.coarse] == self.class_index(manifest.coarse, coarse)
            means = ClassMeans.of(
                self.vectors[is_allowed], labels[is_allowed], num_classes=num_classes, spread=means.spread
            )
        similarities = functional.pad(means.similarities(queries), (0, 1), value=-torch.inf)
        likeness = similarities.amax(dim=1)
        if not bool(likeness.isfinite().all()):  # no image has a label
            chosen = override(chosen, "neighbours")
        _, rows = self.nearest(queries, count=manifest.neighbours, conditioning=conditioning)
        cosines = torch.stack([self.vectors[own].float() @ query for own, query in zip(rows, queries, strict=True)])
        if is_allowed is not None:
            cosines = cosines.where(is_allowed[rows], -torch.inf)
        votes = vote(cosines, labels[rows].remainder(num_classes + 1), num_classes=num_classes + 1)
        nearest = cosines.amax(dim=1)
        return Judgement(combine(chosen, similarities, votes), nearest, likeness, self._reject(nearest, likeness))

    def _reject(self, nearest: Tensor, likeness: Tensor) -> Tensor:
        """Which queries are unknown: too far from every class, or in galleries of before from every image."""
        threshold = self.state.manifest.threshold
        if threshold is None:
            return torch.zeros_like(nearest, dtype=torch.bool)
        if threshold.class_cosine is not None:
            return likeness < threshold.class_cosine
        return nearest < threshold.cosine

    @cached_property
    def _means(self) -> ClassMeans:
        """The means of the classes that are answered."""
        fine = self.state.manifest.fine
        return ClassMeans.of(self.vectors, self.labels[fine], num_classes=len(self.classes(fine)))

    @cached_property
    def _index(self) -> ApproximateIndex | None:
        """The approximate index; None where there is none, or another process has replaced it."""
        entry = self.state.manifest.index
        if entry is None:
            return None
        path = self.state.folder / entry.file
        try:
            compare(path, size=entry.size, sha256=entry.sha256)
            return ApproximateIndex(path, count=self._num_covered, dim=self.state.manifest.dim)
        except FileNotFoundError:
            what = " is missing"
        except (OSError, ValueError) as error:
            what = f": {error.strerror if isinstance(error, OSError) else error}"
        if not path.exists() and self.state.is_replaced():
            return None
        raise damage(self.state.folder, entry.file, what)

    @cached_property
    def _num_covered(self) -> int:
        """Images that the index knows: those of the first parts."""
        entry = self.state.manifest.index
        return sum(part.count for part in self.state.manifest.parts[: len(entry.parts)]) if entry else 0

    @cached_property
    def _starts(self) -> Tensor:
        return torch.tensor([0, *map(len, self.state.parts)]).cumsum(dim=0)

    def _place(self, row: int) -> tuple[int, int]:
        part = int(torch.searchsorted(self._starts, row, right=True)) - 1
        return part, row - int(self._starts[part])


def _check_top(top: int) -> None:
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")


def _some(names: list[str], *, limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
