"""Which samples make up each step of an epoch, for one rank: a function of the seed and the epoch, and nothing else.

An epoch is one order of all samples, cut into global batches. A global batch is cut into micro-batches, of which each
rank takes a contiguous part: batches and micro-batches are the same for any number of ranks, and no sample is seen
twice or left out because of them. The parts are cut between pairs of neighbours, which `blend` mixes: so these are the
same for any number of ranks too.
"""

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import chain

import numpy as np

from vitrail.data.contract import Sample
from vitrail.data.draws import Draws

# Tar shards are shuffled this many at a time: enough to mix classes, few enough to read each shard nearly in order.
_SHARDS_AT_ONCE = 16


@dataclass(frozen=True)
class Ranks:
    """Which of the processes that train together this one is."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.num_ranks} ranks: they count from 0")


def count_parts(batch_size: int, *, num_ranks: int, micro_batch: int, keeps_pairs: bool = True) -> int:
    """The micro-batches of a step in every rank: of at most `micro_batch` images, but of a pair at least.

    None of them is empty in any rank: where ranks have unequally many pairs, the fewest limit the number.
    """
    size = 2 if keeps_pairs else 1
    num_pieces = -(-batch_size // size)
    most, fewest = -(-num_pieces // num_ranks), num_pieces // num_ranks
    return max(1, min(-(-most // max(1, micro_batch // size)), fewest))


class Sampler:
    """The samples of every step.

    With `num_repeats` > 1 (repeated augmentation, thesis 3.4.5) each image comes that often, every time as another
    view, and an epoch keeps its length: it sees a `num_repeats`-th of the images. In batches of more than a few images
    the views of one are never neighbours, because neighbours are what `blend` mixes, and have different neighbours.

    With `keeps_pairs` the samples at the places 2i and 2i + 1 of a global batch are in one part: parts have an even
    number of samples, but for the last one of an odd batch. An evaluation mixes nothing, and cuts by count.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        seed: int = 0,
        ranks: Ranks | None = None,
        num_micro_batches: int = 1,
        num_repeats: int = 1,
        is_training: bool = True,
        keeps_pairs: bool = True,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        for name, value in (
            ("num_samples", num_samples),
            ("batch_size", batch_size),
            ("num_micro_batches", num_micro_batches),
            ("num_repeats", num_repeats),
        ):
            least = 0 if name == "num_samples" and not is_training else 1
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if not is_training and (num_repeats > 1 or weights is not None):
            raise ValueError("an evaluation sees every sample once: repeats and weights are for training")
        for name, array in (("groups", groups), ("weights", weights)):
            if array is not None and np.shape(array) != (num_samples,):
                raise ValueError(f"{name} must have one entry for each of the {num_samples} samples")
        self.num_samples = num_samples
        self.batch_size = min(batch_size, max(1, num_samples))  # of all ranks together
        self.seed = seed
        self.ranks = ranks or Ranks()
        self.num_micro_batches = num_micro_batches
        self.num_repeats = num_repeats
        self.is_training = is_training  # shuffled, whole batches only; otherwise in order, every sample once
        self._piece = 2 if is_training and keeps_pairs else 1  # samples that are never parted
        num_pieces = -(-self.batch_size // self._piece)
        if is_training and num_pieces // self.ranks.num_ranks < num_micro_batches:
            pieces = f"{num_pieces} pairs to mix" if self._piece == 2 else f"{num_pieces} images"
            raise ValueError(
                f"a batch of {self.batch_size} ({pieces}) can't be divided into {self.ranks.num_ranks} x "
                f"{num_micro_batches} parts (processes x micro-batches): take a larger batch_size or run.micro_batch"
            )
        self.groups = groups  # the tar shard of each sample, where reading in order matters
        self.weights = (
            None if weights is None else np.asarray(weights)
        )  # how often each sample is drawn, relative to others; None: once an epoch

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch."""
        length = self.num_samples / self.batch_size
        return math.floor(length) if self.is_training else math.ceil(length)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch that this rank gets: `num_micro_batches` a step, fewer only in an uneven last step."""
        if self.num_samples == 0:
            return 0
        left = self.num_samples - (self.num_steps - 1) * self.batch_size
        last = len(self._parts(min(left, self.batch_size)))
        return last if self.num_steps == 1 else (self.num_steps - 1) * len(self._parts(self.batch_size)) + last

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[list[Sample]]:
        """This rank's batches of an epoch, from `start_step` on."""
        if not 0 <= start_step <= self.num_steps:
            raise ValueError(f"an epoch has the steps 0 to {self.num_steps - 1}, not {start_step}")
        order = self.order(number)
        turns = _count_turns(order)
        for step in range(start_step, self.num_steps):
            batch = self._batch(order, turns, epoch=number, start=step * self.batch_size)
            for part in self._parts(len(batch)):
                yield batch[part]

    def order(self, epoch: int) -> np.ndarray:
        """All sample indices in the order of that epoch."""
        if not self.is_training:
            return np.arange(self.num_samples)
        generator = Draws(self.seed, epoch, "order").array()
        if self.weights is not None:
            return generator.choice(self.num_samples, self.num_samples, p=self.weights / self.weights.sum())
        if self.groups is None:
            return generator.permutation(self.num_samples)
        names = generator.permutation(np.unique(self.groups))
        windows = [names[start : start + _SHARDS_AT_ONCE] for start in range(0, len(names), _SHARDS_AT_ONCE)]
        return np.concatenate(
            [generator.permutation(np.flatnonzero(np.isin(self.groups, window))) for window in windows]
        )

    def _batch(self, order: np.ndarray, turns: np.ndarray, *, epoch: int, start: int) -> list[Sample]:
        """One global batch: first the first views of its images, then the second views, and so on."""
        stop = min(start + self.batch_size, self.num_samples)
        places = sorted(range(start, stop), key=lambda place: place % self.num_repeats)
        samples = []
        for place in places:
            image, repeat = divmod(place, self.num_repeats)
            samples.append(Sample(epoch, int(order[image]), int(turns[image]) * self.num_repeats + repeat))
        return _pair(samples) if self.num_repeats > 1 and self._piece == 2 else samples

    @property
    def first_places(self) -> list[int]:
        """The places in a global batch at which this rank's micro-batches begin."""
        return [part.start for part in self._parts(self.batch_size)]

    def _parts(self, length: int) -> list[slice]:
        """This rank's micro-batches of a global batch, none of them empty.

        The batch is cut into micro-batches first and each of these between ranks: what the ranks compute at the same
        time, which is what batch normalisation sees, is the same images for any number of ranks.
        """
        together = _cut(slice(0, length), self.num_micro_batches, piece=self._piece)
        parts = [_cut(part, self.ranks.num_ranks, piece=self._piece)[self.ranks.rank] for part in together]
        return [part for part in parts if part.stop > part.start]


def _pair(samples: list[Sample]) -> list[Sample]:
    """The samples with another image beside each view of an image, as near to their order as that can be.

    Each is paired with the next one that is of another image and of none that its image was paired with before. Where
    the last ones fit nobody, they change places with those of the nearest pair before them with which both fit; where
    there is none, because the images are too few, they are left together.
    """
    pairs: list[tuple[Sample, Sample]] = []
    met: set[frozenset[int]] = set()
    is_paired = [False] * len(samples)
    for place, first in enumerate(samples):
        if is_paired[place]:
            continue
        left = (other for other in range(place + 1, len(samples)) if not is_paired[other])
        nearest = next(left, None)
        if nearest is None:  # the last of an odd batch
            return [sample for pair in pairs for sample in pair] + [first]
        other = next((other for other in chain((nearest,), left) if _fit(first, samples[other], met)), nearest)
        is_paired[other] = True
        pairs.append((first, samples[other]))
        if not _fit(*pairs[-1], met):
            _exchange(pairs, met)
        met.add(frozenset(sample.index for sample in pairs[-1]))
    return [sample for pair in pairs for sample in pair]


def _fit(first: Sample, second: Sample, met: Set[frozenset[int]]) -> bool:
    """Whether two samples are of different images that have not been together."""
    return first.index != second.index and frozenset((first.index, second.index)) not in met


def _exchange(pairs: list[tuple[Sample, Sample]], met: set[frozenset[int]]) -> None:
    """Give the samples of the last pair other partners, those of the nearest pair before it that allows it."""
    first, second = pairs[-1]
    for place in range(len(pairs) - 2, -1, -1):
        third, fourth = pairs[place]
        for one, two in (((first, third), (second, fourth)), ((first, fourth), (second, third))):
            if _fit(*one, met) and _fit(*two, met) and {one[0].index, one[1].index} != {two[0].index, two[1].index}:
                met.discard(frozenset((third.index, fourth.index)))
                met.add(frozenset((one[0].index, one[1].index)))
                pairs[place], pairs[-1] = one, two
                return


def _cut(whole: slice, num_parts: int, *, piece: int) -> list[slice]:
    """Contiguous parts of about equal length, cut only at multiples of `piece` from the start."""
    num_pieces = -(-(whole.stop - whole.start) // piece)
    cuts = [whole.start + piece * (num_pieces * part // num_parts) for part in range(num_parts)]
    return [slice(start, stop) for start, stop in zip(cuts, [*cuts[1:], whole.stop], strict=True)]


def _count_turns(order: np.ndarray) -> np.ndarray:
    """How often the sample at each place has come before in the epoch: 0 but where samples are drawn by weight."""
    by_sample = np.argsort(order, kind="stable")
    is_first = np.diff(order[by_sample], prepend=-1) != 0
    starts = np.flatnonzero(is_first)
    turns = np.empty_like(by_sample)
    turns[by_sample] = np.arange(len(order)) - starts[np.cumsum(is_first) - 1]
    return turns
