"""Batches of so many tokens, of sentences of like length; which of them follows from seed, epoch and step.

An epoch is cut into pieces of like sentences, a step takes some of them by chance: so it sees short and long ones, and
little is padded. A step is cut between pieces into micro-batches, and these between processes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.draws import Draws
from vitrail.data.sampler import Ranks
from vitrail.translation.vocabulary import BEGIN, PAD, Vocabulary

_AT_ONCE = 100_000  # sentences that are encoded at a time


class Sentences:
    """Sentences as numbers of pieces, end to end in one array."""

    def __init__(self, pieces: Sequence[np.ndarray]) -> None:
        self.lengths = np.array([len(one) for one in pieces], dtype=np.int64)
        self._ends = np.cumsum(self.lengths)
        self._flat = np.concatenate(list(pieces)) if len(pieces) else np.zeros(0, dtype=np.int32)

    @classmethod
    def encoded(cls, lines: Sequence[str], vocabulary: Vocabulary) -> "Sentences":
        """The pieces of many sentences."""
        parts: list[np.ndarray] = []
        for start in range(0, len(lines), _AT_ONCE):
            parts += vocabulary.encode(lines[start : start + _AT_ONCE])
        return cls(parts)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int | np.integer[Any]) -> np.ndarray:
        end = self._ends[index]
        return self._flat[end - self.lengths[index] : end]

    def cut(self, longest: int) -> "Sentences":
        """The sentences with those that are too long ended early, by their sign of the end."""
        if len(self) == 0 or int(self.lengths.max()) <= longest:
            return self
        rows = (self[index] for index in range(len(self)))
        return Sentences([row if len(row) <= longest else np.append(row[: longest - 1], row[-1:]) for row in rows])


class TokenBatch(NamedTuple):
    """Some pairs of sentences; sentences are columns."""

    source: Tensor  # int64 [length, batch], ends included
    lengths: Tensor  # int64 [batch]: of the source
    target: Tensor  # int64 [length, batch]: the sign of the beginning, then the pieces but for the end
    places: Tensor  # int64 [answers]: where answers are asked for, flat in target
    answers: Tensor  # int64 [answers]: the pieces that come after these places
    indices: Tensor  # int64 [batch]: the pair's place in the data set
    first: int = 0  # the place of its first pair in the global batch
    num_of_step: int = 0  # answers of the global batch

    @property
    def num_samples(self) -> int:
        """How many pairs the batch holds."""
        return len(self.indices)

    @property
    def num_tokens(self) -> int:
        """Pieces of both sides, without padding."""
        return int(self.lengths.sum()) + len(self.answers)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TokenBatch":
        """The batch with its tokens on the device; the places in the data set stay."""
        names = ("source", "lengths", "target", "places", "answers")
        return self._replace(**{name: getattr(self, name).to(device, non_blocking=non_blocking) for name in names})


def make_batch(
    source: Sequence[np.ndarray],
    target: Sequence[np.ndarray],
    indices: np.ndarray,
    *,
    first: int = 0,
    num_of_step: int = 0,
) -> TokenBatch:
    """Pairs of encoded sentences, padded to the longest."""
    padded, lengths = _pad(source)
    following, target_lengths = _pad(target)
    shifted = np.concatenate([np.full((1, len(target)), BEGIN), following[:-1]])
    places = np.flatnonzero(np.arange(len(following))[:, None] < target_lengths)
    return TokenBatch(
        torch.from_numpy(padded),
        torch.from_numpy(lengths),
        torch.from_numpy(shifted),
        torch.from_numpy(places),
        torch.from_numpy(following.reshape(-1)[places]),
        torch.from_numpy(np.asarray(indices, dtype=np.int64)),
        first,
        num_of_step or len(places),
    )


def pad_sentences(sentences: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Sentences as columns, int64 [length, batch], and their lengths."""
    padded, lengths = _pad(sentences)
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def _pad(sentences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(one) for one in sentences], dtype=np.int64)
    padded = np.full((int(lengths.max()), len(sentences)), PAD, dtype=np.int64)
    for column, sentence in enumerate(sentences):
        padded[: len(sentence), column] = sentence
    return padded, lengths


class Part(NamedTuple):
    """A micro-batch of a step, in one process."""

    indices: np.ndarray
    first: int  # the place of its first pair in the global batch
    num_of_step: int  # answers of the global batch


class TokenSampler:
    """The pairs of every step, about `batch_size` tokens of both languages, in pieces of about `piece_size`."""

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        batch_size: int,
        piece_size: int,
        seed: int = 0,
        ranks: Ranks | None = None,
        num_micro_batches: int = 1,
        is_training: bool = True,
    ) -> None:
        self.seed, self.ranks, self.num_micro_batches = seed, ranks or Ranks(), num_micro_batches
        self.is_training = is_training
        self._lengths = source_lengths, target_lengths
        # Ties apart, pairs come in one order: by the target, within it by the source, to and fro.
        self._key = np.where(target_lengths % 2 == 0, source_lengths, -source_lengths)
        costs = (source_lengths + target_lengths)[self._sorted(np.arange(len(source_lengths)))]
        total = int(costs.sum())
        num_steps = max(1, round(total / batch_size))
        num_pieces = num_steps * max(1, round(batch_size / piece_size))
        ends = np.cumsum(costs)
        cuts = np.searchsorted(ends, np.arange(1, num_pieces) * total / num_pieces)
        self._cuts = np.unique(cuts[(cuts > 0) & (cuts < len(costs))])
        self.num_steps = min(num_steps, len(self._cuts) + 1)
        self.batch_size = max(1, round(total / self.num_steps))  # on average
        self._num_parts = self.ranks.num_ranks * num_micro_batches
        if is_training:
            self._check_parts()

    @property
    def first_places(self) -> list[int]:
        """Micro-batches begin where each of them says: steps are not alike."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.num_steps * self.num_micro_batches

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[Part]:
        """This process's micro-batches of an epoch, from a step on."""
        for step in self._steps(number)[start_step:]:
            pairs = np.concatenate(step)
            num_of_step = int(self._lengths[1][pairs].sum())
            cuts = self._cut(step)
            parts = [slice(*ends) for ends in zip([0, *cuts], [*cuts, len(pairs)], strict=True)]
            for part in parts[self.ranks.rank :: self.ranks.num_ranks]:
                if part.stop > part.start:
                    yield Part(pairs[part], part.start, num_of_step)

    def _steps(self, epoch: int) -> list[list[np.ndarray]]:
        """The pieces of every step, the longest sentences of a step first."""
        count = len(self._key)
        draws = Draws(self.seed, epoch, "order").array() if self.is_training else None
        order = self._sorted(np.arange(count) if draws is None else draws.permutation(count))
        pieces = np.split(order, self._cuts)
        places = np.arange(len(pieces)) if draws is None else draws.permutation(len(pieces))
        return [[pieces[place] for place in sorted(part)[::-1]] for part in np.array_split(places, self.num_steps)]

    def _sorted(self, order: np.ndarray) -> np.ndarray:
        """An order of all pairs, sorted by their lengths; those alike stay as they come."""
        return order[np.lexsort((self._key[order], self._lengths[1][order]))]

    def _cut(self, step: list[np.ndarray]) -> list[int]:
        """Where a step is cut into its parts for all processes: between pieces, if it has enough of them."""
        if self._num_parts <= len(step):
            groups = np.array_split(np.array([len(piece) for piece in step]), self._num_parts)
            return np.cumsum([int(group.sum()) for group in groups])[:-1].tolist()
        pairs = np.concatenate(step)
        costs = np.cumsum((self._lengths[0] + self._lengths[1])[pairs])
        wanted = np.searchsorted(costs, np.arange(1, self._num_parts) * costs[-1] / self._num_parts)
        places = np.arange(1, self._num_parts)
        # No part is empty where there are enough pairs.
        cuts = np.maximum.accumulate(np.maximum(wanted, places) - places) + places
        return np.minimum(cuts, len(pairs) - self._num_parts + places).tolist()

    def _check_parts(self) -> None:
        fewest = min(sum(len(piece) for piece in step) for step in self._steps(0))
        if fewest < self._num_parts:
            raise ValueError(
                f"a step of {fewest} sentences can't be divided into {self.ranks.num_ranks} x {self.num_micro_batches} "
                "parts (processes x micro-batches): take a larger batch_size or run.micro_batch"
            )


class TokenLoader:
    """Batches of encoded pairs, epoch by epoch."""

    num_workers = 0

    def __init__(self, source: Sentences, target: Sentences, *, sampler: TokenSampler) -> None:
        self.source, self.target, self.sampler = source, target, sampler

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return len(self.sampler)

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[TokenBatch]:
        """The micro-batches of an epoch, from a step on."""
        for part in self.sampler.epoch(number, start_step=start_step):
            source, target = ([side[index] for index in part.indices] for side in (self.source, self.target))
            yield make_batch(source, target, part.indices, first=part.first, num_of_step=part.num_of_step)
