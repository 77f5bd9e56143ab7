"""How a gallery answers what an image shows: by its neighbours, by the means of the classes, or by both.

A class of few images has few neighbours to offer and is outvoted by large ones; its mean stands beside theirs. The mean
of n images is longer than that of all images there could be, by about the spread of a class divided by n, which makes
every cosine to it too small. `ClassMeans` takes that out, so that classes of five images and of five hundred compete.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.knn import find_neighbours, weigh
from vitrail.evaluation.ranking import Conditioning, row_chunks
from vitrail.gallery.gallery_manifest import RuleEntry, RuleName

RULES: tuple[RuleName, ...] = ("means", "mix", "neighbours")  # the first of those that are equally good is chosen
AUTO = "auto"
_TEMPERATURES = (0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1)  # that turn cosines to means into probabilities
_DEFAULT_TEMPERATURE = 0.02
_FEW = 5  # pictures that a class is added from, where the rules are compared
_MAX_ASKED = 2000  # images that compare them
_LEAST_SHARE = 0.25  # of a mean's squared length that is left, whatever its noise
_BLOCK = 65_536  # images that are summed at a time
_BEHIND = -4.0  # more than two cosines can differ by


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """The means of classes, and how like an image is to each."""

    sums: Tensor  # float32 [classes, dim]: of the vectors of length 1
    counts: Tensor  # float32 [classes]
    spread: float  # 1 minus the mean cosine of two images of a class: the squared distance of an image from its mean

    @classmethod
    def of(cls, vectors: Tensor, labels: Tensor, *, num_classes: int, spread: float | None = None) -> "ClassMeans":
        """The means of vectors of length 1; images of the label -1 take no part. The spread is measured if need be."""
        sums, counts = torch.zeros(num_classes, vectors.shape[1]), torch.zeros(num_classes)
        for start in range(0, len(vectors), _BLOCK):
            own = labels[start : start + _BLOCK]
            is_known = own >= 0
            sums.index_add_(0, own[is_known], vectors[start : start + _BLOCK][is_known].float())
            counts += torch.bincount(own[is_known], minlength=num_classes)
        return cls(sums, counts, measure_spread(sums, counts) if spread is None else spread)

    def similarities(self, queries: Tensor) -> Tensor:
        """Estimates of the cosine to the mean that a class of endlessly many images would have, [queries, classes].

        Classes without an image have -inf.
        """
        counts = self.counts.clamp(min=1.0)
        means = self.sums / counts[:, None]
        lengths = _true_lengths((means * means).sum(dim=1), counts, self.spread)
        return (queries @ (means / lengths[:, None]).T).masked_fill(self.counts == 0, -torch.inf)

    def own_similarities(self, queries: Tensor, labels: Tensor) -> Tensor:
        """The similarity of queries that are in the collection to their own class without them, [queries]."""
        sums, counts = self.sums[labels], self.counts[labels] - 1.0
        products = (sums * queries).sum(dim=1)
        divisors = counts.clamp(min=1.0)
        squares = ((sums * sums).sum(dim=1) - 2.0 * products + 1.0).clamp(min=0.0) / divisors**2
        found = (products - 1.0) / divisors / _true_lengths(squares, divisors, self.spread)
        return found.masked_fill(counts == 0, -torch.inf)


def vote(cosines: Tensor, labels: Tensor, *, num_classes: int) -> Tensor:
    """Equation 2.6: the probability of each class [queries, classes] by neighbours [queries, neighbours]."""
    weights = torch.zeros(len(cosines), num_classes).scatter_add_(1, labels, weigh(cosines))
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def combine(rule: RuleEntry, similarities: Tensor, votes: Tensor) -> Tensor:
    """The probability of each class [queries, classes] by a rule."""
    if rule.name == "neighbours":
        return votes
    by_means = torch.softmax(similarities / rule.temperature, dim=1)
    return by_means if rule.name == "means" else (by_means + votes) / 2.0


@dataclass(frozen=True, eq=False)
class Held:
    """Images that are asked about as if they were not in the gallery."""

    vectors: Tensor  # float32 [images, dim], of length 1
    labels: Tensor  # int64 [images]; -1 where the gallery does not have the class
    rows: Tensor  # int64 [images]: where in the gallery an image is itself; -1: nowhere
    name: str  # what they are, for a person

    def choose(self, places: Tensor | slice) -> "Held":
        """Some of the images."""
        return Held(self.vectors[places], self.labels[places], self.rows[places], self.name)

    def similarities(self, means: ClassMeans) -> Tensor:
        """How like each is to each class, [images, classes]; to its own without its own help."""
        found = means.similarities(self.vectors)
        inside = ((self.rows >= 0) & (self.labels >= 0)).nonzero()[:, 0]
        found[inside, self.labels[inside]] = means.own_similarities(self.vectors[inside], self.labels[inside])
        return found

    def has_others(self, means: ClassMeans) -> Tensor:
        """Whether the gallery has another image of an image's class."""
        counts = functional.pad(means.counts, (0, 1))[self.labels]  # the last is where -1 leads
        return counts > (self.rows >= 0).float()

    def likeness(self, means: ClassMeans) -> Tensor:
        """How like each is to the class it is most like, of those whose class has other images in the gallery."""
        known = self.choose(self.has_others(means))
        found = [
            known.choose(rows).similarities(means).amax(dim=1)
            for rows in row_chunks(len(known.labels), width=len(means.counts))
        ]
        return torch.cat([torch.zeros(0), *found])


def check_rule(name: str) -> None:
    """Refuse a rule that there is not."""
    if name not in (*RULES, AUTO):
        raise ValueError(f"rule must be one of {', '.join((*RULES, AUTO))}, not {name!r}")


def override(rule: RuleEntry | None, name: str | None) -> RuleEntry:
    """The gallery's rule (that of galleries of before are the neighbours), or the one that a person wants instead."""
    rule = rule or RuleEntry(name="neighbours", temperature=_DEFAULT_TEMPERATURE)
    if name is None or name == AUTO:
        return rule
    check_rule(name)
    return rule.model_copy(update={"name": name})


def choose_rule(
    wanted: str, vectors: Tensor, labels: Tensor, held: Held, *, num_classes: int, neighbours: int
) -> RuleEntry:
    """The rule that is wanted, or with "auto" the one that is right most often, and its temperature.

    Two figures count alike: the accuracy for held-out images as the gallery is, and that for the same images if their
    class had been added from five pictures. Both are means over at most 2,000 images.
    """
    means = ClassMeans.of(vectors, labels, num_classes=num_classes)
    order = torch.randperm(len(held.labels), generator=torch.Generator().manual_seed(0))
    asked = held.choose(order[held.has_others(means)[order]][:_MAX_ASKED])
    if not len(asked.labels) or bool((labels < 0).any()):
        return override(None, wanted)
    similarities = asked.similarities(means)
    losses = {
        temperature: functional.cross_entropy(similarities / temperature, asked.labels).item()
        for temperature in _TEMPERATURES
    }
    temperature = min(losses, key=losses.__getitem__)
    cosines, rows = find_neighbours(asked.vectors, vectors, count=min(neighbours, len(vectors)), without=asked.rows)
    votes = vote(cosines, labels[rows], num_classes=num_classes)
    few = _make_few(asked, vectors, labels, means, similarities, neighbours=neighbours)
    entries = [RuleEntry(name=name, temperature=temperature) for name in RULES]
    known = {entry.name: _accuracy(combine(entry, similarities, votes), asked.labels) for entry in entries}
    added = known  # where every class has few images already
    if len(few.labels):
        added = {entry.name: _accuracy(combine(entry, few.similarities, few.votes), few.labels) for entry in entries}
    best = max(RULES, key=lambda name: known[name] + added[name])
    chosen = RuleEntry(
        name=best,
        temperature=temperature,
        known=known,
        added=added,
        num_held_out=len(asked.labels),
        held_out=held.name,
    )
    return override(chosen, wanted)


@dataclass(frozen=True, eq=False)
class _Few:
    """What a gallery would go by if the class of each image that is asked about had five images."""

    similarities: Tensor
    votes: Tensor
    labels: Tensor


def _make_few(
    asked: Held, vectors: Tensor, labels: Tensor, means: ClassMeans, similarities: Tensor, *, neighbours: int
) -> _Few:
    num_classes = len(means.counts)
    rows = _first_of_each(labels, num_classes=num_classes)
    is_taken = torch.zeros(len(labels) + 1, dtype=torch.bool).index_fill_(0, rows[rows >= 0], True)
    is_taken[-1] = False  # where -1 leads
    kept = ~is_taken[asked.rows]
    asked, similarities = asked.choose(kept), similarities[kept].clone()
    own = rows[asked.labels]
    few = ClassMeans.of(vectors[rows[rows >= 0]], labels[rows[rows >= 0]], num_classes=num_classes, spread=means.spread)
    every = torch.arange(len(asked.labels))
    similarities[every, asked.labels] = few.similarities(asked.vectors)[every, asked.labels]
    # Neighbours of other classes, and the five: those of the own class come behind all.
    bonus = torch.zeros(len(asked.labels), num_classes + 1, dtype=torch.float64)
    bonus[every, asked.labels] = _BEHIND
    count = min(neighbours, len(vectors))
    cosines, found = find_neighbours(asked.vectors, vectors, count=count, conditioning=Conditioning(bonus, labels))
    is_other = labels[found] != asked.labels[:, None]
    fives = torch.einsum("qd,qfd->qf", asked.vectors, vectors[own.clamp(min=0)].float())
    merged = torch.cat([cosines.float().where(is_other, -torch.inf), fives.where(own >= 0, -torch.inf)], dim=1)
    of = torch.cat([labels[found], asked.labels[:, None].expand_as(own)], dim=1)
    best = merged.topk(min(neighbours, merged.shape[1]), dim=1)
    votes = vote(best.values, of.gather(1, best.indices), num_classes=num_classes)
    return _Few(similarities, votes, asked.labels)


def _first_of_each(labels: Tensor, *, num_classes: int) -> Tensor:
    """Rows [classes, five] of images of each class, drawn alike every time; -1 where a class has fewer."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    order = order[labels[order].argsort(stable=True)]
    counts = torch.bincount(labels, minlength=num_classes)
    starts = counts.cumsum(0) - counts
    places = starts[:, None] + torch.arange(_FEW)
    is_there = torch.arange(_FEW) < counts[:, None]
    return order[places.clamp(max=len(labels) - 1)].where(is_there, -1)


def _accuracy(probabilities: Tensor, labels: Tensor) -> float:
    return (probabilities.argmax(dim=1) == labels).double().mean().item()


def measure_spread(sums: Tensor, counts: Tensor) -> float:
    """1 minus the mean cosine of two images of one class, over the classes that have two; 0 where there is none."""
    several = counts > 1
    if not bool(several.any()):
        return 0.0
    own, squares = counts[several], (sums[several] ** 2).sum(dim=1)
    cosines = (squares - own) / (own * (own - 1.0))
    return 1.0 - cosines.mean().item()


def _true_lengths(squares: Tensor, counts: Tensor, spread: float) -> Tensor:
    """Lengths of means from their squares, without what the noise of so few images adds to them."""
    return torch.maximum(squares - spread / counts, _LEAST_SHARE * squares).clamp(min=1e-12).sqrt()
