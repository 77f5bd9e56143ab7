"""Which images of a pass over data are a process's own: pieces of whole batches, which processes take in turns.

The batches are those of one process, so that a network answers with the same bits however many go over the data.
"""

from collections.abc import Iterator, Sequence

from vitrail.data.contract import Sample
from vitrail.data.sampler import Ranks, Sampler

_MOST_BATCHES = 4  # of a piece: what a process may be ahead of the others where answers are told in order


def own_ranges(num_samples: int, *, batch_size: int, ranks: Ranks) -> list[range]:
    """The samples that one of the processes looks at; each sample is one process's own."""
    pieces = cut_pieces([range(num_samples)], batch_size=batch_size, num_ranks=ranks.num_ranks, most=_MOST_BATCHES)
    return pieces[ranks.rank :: ranks.num_ranks]


def cut_evenly(num_samples: int, ranks: Ranks) -> range:
    """A process's part of samples that are looked at one by one: the parts of all, one after the other, are all."""
    cuts = [num_samples * place // ranks.num_ranks for place in (ranks.rank, ranks.rank + 1)]
    return range(*cuts)


def cut_pieces(wanted: Sequence[range], *, batch_size: int, num_ranks: int, most: int) -> list[range]:
    """Pieces of up to `most` batches of the ranges, and of fewer where some process would have nothing to do."""
    num_batches = sum(-(-len(part) // batch_size) for part in wanted)
    size = batch_size * max(1, min(most, num_batches // num_ranks))
    return [
        range(start, min(start + size, part.stop)) for part in wanted for start in range(part.start, part.stop, size)
    ]


class RangeSampler(Sampler):
    """Batches of ranges of a data set, in order and every sample once; each element of `epochs` is an epoch."""

    def __init__(self, num_samples: int, *, batch_size: int, epochs: Sequence[Sequence[range]]) -> None:
        super().__init__(num_samples, batch_size=batch_size, is_training=False)
        self.epochs = epochs

    @property
    def num_batches(self) -> int:
        """Batches of the first epoch."""
        return sum(-(-len(part) // self.batch_size) for part in self.epochs[0]) if self.epochs else 0

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[list[Sample]]:
        """The batches of the ranges of that number."""
        if start_step:
            raise ValueError("a pass over ranges begins at their beginning")
        for part in self.epochs[number]:
            for start in range(part.start, part.stop, self.batch_size):
                yield [Sample(0, index, 0) for index in range(start, min(start + self.batch_size, part.stop))]
