"""The memory of embeddings and the nearest-neighbour loss over it, in chunks and shared by processes (thesis 2.3.1)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vitrail.data.draws import Draws

_ROWS_OF_A_DRAW = 8192  # initial vectors are drawn by blocks, so that a process draws its own only


def _alone(tensor: Tensor) -> Tensor:
    """The sum over one process."""
    return tensor


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among those that share a memory, and the one thing they do together: sums, in place."""

    rank: int = 0
    num_ranks: int = 1
    all_reduce: Callable[[Tensor], Tensor] = _alone  # the sum over all processes, in place and returned

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank must be one of 0 ... {self.num_ranks - 1}, not {self.rank}")
        if self.num_ranks > 1 and self.all_reduce is _alone:
            raise ValueError(f"{self.num_ranks} processes need an all_reduce: pass the sum over them")

    def part_of(self, count: int, *, rank: int) -> slice:
        """The part of `count` rows that is a process's: parts are contiguous and differ by one row at most."""
        return slice(count * rank // self.num_ranks, count * (rank + 1) // self.num_ranks)

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """The rows of all processes, which may be of different number, and the place of this one's among them."""
        if self.num_ranks == 1:
            return rows, slice(0, len(rows))
        counts = torch.zeros(self.num_ranks, dtype=torch.int64, device=rows.device)
        counts[self.rank] = len(rows)
        ends = self.all_reduce(counts).cumsum(0).tolist()
        own = slice(ends[self.rank] - len(rows), ends[self.rank])
        together = rows.new_zeros(ends[-1], *rows.shape[1:])
        together[own] = rows
        return self.all_reduce(together), own


class Neighbourhood(NamedTuple):
    """How much of a set of memory vectors a query attends to, and what it sees there."""

    log_sum: Tensor  # [queries]: log sum of exp(cos / temperature); -inf where the set is empty
    mean: Tensor  # [queries, dim]: the vectors' mean with those weights; 0 where the set is empty

    def joined(self, other: "Neighbourhood") -> "Neighbourhood":
        """The neighbourhood of both sets together."""
        log_sum = torch.logaddexp(self.log_sum, other.log_sum)
        return Neighbourhood(log_sum, self.share_of(log_sum) * self.mean + other.share_of(log_sum) * other.mean)

    def share_of(self, log_sum: Tensor) -> Tensor:
        """The weight of this set in a larger one of that sum, [queries, 1]."""
        return _shifted_exp(self.log_sum, log_sum).unsqueeze(1)


def _shifted_exp(scores: Tensor, log_sum: Tensor) -> Tensor:
    """exp(scores - log_sum), and 0 where both are of nothing."""
    return (scores - torch.where(torch.isfinite(log_sum), log_sum, 0.0)).exp()


def attend(scores: Tensor, vectors: Tensor) -> Neighbourhood:
    """The neighbourhood of scores [queries, rows], -inf where a row does not count."""
    log_sum = scores.logsumexp(dim=1)
    return Neighbourhood(log_sum, _shifted_exp(scores, log_sum.unsqueeze(1)) @ vectors)


class Queries(NamedTuple):
    """What the memory is asked about."""

    vectors: Tensor  # [queries, dim], of length 1
    labels: Tensor  # [queries]
    indices: Tensor  # [queries]: the sample's place in the data set, which is its place in the memory


class Memory:
    """One embedding of length 1 for every training sample, and its label.

    `m <- momentum m + (1 - momentum) g(x)` for the samples of a step, and then to length 1 again. The vectors begin at
    random. With several processes each holds a contiguous part of them, and answers about it for all.
    """

    def __init__(
        self,
        labels: Tensor,  # int64 [samples]
        *,
        dim: int,
        momentum: float = 0.5,
        seed: int = 0,
        chunk_size: int = 16384,
        processes: Processes | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if labels.ndim != 1 or labels.is_floating_point() or len(labels) == 0:
            raise ValueError("a memory needs one class index a sample: images with several labels have no neighbours")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum of the memory must be in [0, 1), not {momentum!r}")
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, not {chunk_size!r}")
        self.momentum, self.chunk_size = momentum, chunk_size
        self.processes = processes or Processes()
        self.num_samples = len(labels)
        self.own = self.processes.part_of(self.num_samples, rank=self.processes.rank)
        self.labels = labels[self.own].to(device)
        self.vectors = draw_vectors(self.own, dim=dim, seed=seed).to(device)

    @property
    def dim(self) -> int:
        """The embedding dimension."""
        return self.vectors.shape[1]

    def loss(self, embeddings: Tensor, *, labels: Tensor, indices: Tensor, temperature: float = 0.05) -> Tensor:
        """L_knn of eq. 2.3 for every embedding [queries, dim], in float32; the memory itself is a constant.

        A sample is no neighbour of itself. One that is alone in its class has no neighbour to find and costs nothing.
        """
        if temperature <= 0.0:
            raise ValueError(f"the temperature must be above 0, not {temperature!r}")
        self._check(embeddings, indices)
        if labels.ndim != 1 or labels.is_floating_point():
            raise ValueError("the neighbour loss needs one class index an image: leave mixup, cutmix and bce out")
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = functional.normalize(embeddings.to(self.vectors.dtype), dim=1)
            return _NeighbourLoss.apply(queries, labels, indices, self, temperature)

    @torch.no_grad()
    def neighbourhoods(self, queries: Queries, *, temperature: float) -> tuple[Neighbourhood, Neighbourhood]:
        """The neighbourhoods of each query: this process's samples but itself, and those of them with its label."""
        empty = Neighbourhood(torch.full_like(queries.vectors[:, 0], -torch.inf), torch.zeros_like(queries.vectors))
        of_all, of_same = empty, empty
        for first in range(0, len(self.vectors), self.chunk_size):
            vectors = self.vectors[first : first + self.chunk_size]
            labels = self.labels[first : first + self.chunk_size]
            scores = queries.vectors @ vectors.T / temperature
            places = queries.indices - (self.own.start + first)
            rows = torch.nonzero((places >= 0) & (places < len(vectors))).squeeze(1)
            scores[rows, places[rows]] = -torch.inf
            of_all = of_all.joined(attend(scores, vectors))
            scores.masked_fill_(queries.labels.unsqueeze(1) != labels, -torch.inf)
            of_same = of_same.joined(attend(scores, vectors))
        return of_all, of_same

    def joined(self, part: Neighbourhood) -> Neighbourhood:
        """The whole of every neighbourhood, from this process's part of it."""
        if self.processes.num_ranks == 1:
            return part
        log_sums = part.log_sum.new_zeros(self.processes.num_ranks, len(part.log_sum))
        log_sums[self.processes.rank] = part.log_sum
        log_sum = self.processes.all_reduce(log_sums).logsumexp(dim=0)
        return Neighbourhood(log_sum, self.processes.all_reduce(part.share_of(log_sum) * part.mean))

    @torch.no_grad()
    def update(self, embeddings: Tensor, indices: Tensor) -> None:
        """Take in the embeddings [samples, dim] of a step, of every process; of a sample seen twice their mean."""
        places, values = self._collect(embeddings, indices)
        places, which, counts = torch.unique(places, return_inverse=True, return_counts=True)
        means = values.new_zeros(len(places), self.dim).index_add_(0, which, values) / counts.unsqueeze(1)
        moved = torch.lerp(means, self.vectors[places], self.momentum)
        self.vectors[places] = functional.normalize(moved, dim=1)

    @torch.no_grad()
    def fill(self, embeddings: Tensor, indices: Tensor) -> None:
        """Replace the vectors of samples, as after training with the final weights: `m <- g(x)`."""
        places, values = self._collect(embeddings, indices)
        self.vectors[places] = values

    def _collect(self, embeddings: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings, of every process, that this one keeps, at length 1, with their rows."""
        self._check(embeddings, indices)
        indices, _ = self.processes.gather(indices.to(self.vectors.device))
        values, _ = self.processes.gather(functional.normalize(embeddings.to(self.vectors), dim=1))
        is_own = (indices >= self.own.start) & (indices < self.own.stop)
        return indices[is_own] - self.own.start, values[is_own]

    def _check(self, embeddings: Tensor, indices: Tensor) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dim:
            raise ValueError(f"the memory keeps embeddings of {self.dim} numbers, not {list(embeddings.shape)}")
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.num_samples:
            raise ValueError(f"the memory is of {self.num_samples} samples: an index is beyond them")

    def state_dict(self) -> dict[str, Any]:
        """The vectors of all samples, on the CPU; every process takes part."""
        parts = []
        for rank in range(self.processes.num_ranks):  # one part at a time: no device has room for all
            part = self.processes.part_of(self.num_samples, rank=rank)
            values = self.vectors.new_zeros(part.stop - part.start, self.dim)
            if rank == self.processes.rank:
                values.copy_(self.vectors)
            if self.processes.num_ranks > 1:
                values = self.processes.all_reduce(values)
            parts.append(values.cpu())
        return {"vectors": torch.cat(parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; the number of processes may be another."""
        vectors = state["vectors"]
        if vectors.shape != (self.num_samples, self.dim):
            raise ValueError(
                f"the memory of the checkpoint is {list(vectors.shape)}, "
                f"of this run {[self.num_samples, self.dim]}: are the data or the projector others?"
            )
        self.vectors.copy_(vectors[self.own])


def draw_vectors(rows: slice, *, dim: int, seed: int) -> Tensor:
    """Random vectors of length 1 for those rows; a row's depends on the seed and its number alone."""
    blocks = []
    for block in range(rows.start // _ROWS_OF_A_DRAW, -(-rows.stop // _ROWS_OF_A_DRAW)):
        generator = torch.Generator().manual_seed(Draws(seed, block, "memory").integer(2**62))
        blocks.append(torch.randn(_ROWS_OF_A_DRAW, dim, generator=generator))
    first = rows.start - rows.start % _ROWS_OF_A_DRAW
    drawn = torch.cat(blocks)[rows.start - first : rows.stop - first] if blocks else torch.zeros(0, dim)
    return functional.normalize(drawn, dim=1)


class _NeighbourLoss(torch.autograd.Function):
    """log sum over all neighbours - log sum over those of the same label, which is -log sum of p (eq. 2.2, 2.3).

    Its gradient by a query is the difference of the two neighbourhoods' means over the temperature. Both are found in
    one pass over the memory, and nothing as wide as the memory is kept for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, labels: Tensor, indices: Tensor, memory: Memory, temperature: float
    ) -> Tensor:
        device = memory.vectors.device
        vectors, own = memory.processes.gather(queries)
        everyone = Queries(
            vectors, memory.processes.gather(labels.to(device))[0], memory.processes.gather(indices.to(device))[0]
        )
        parts = memory.neighbourhoods(everyone, temperature=temperature)
        of_all, of_same = (memory.joined(part) for part in parts)
        has_neighbour = torch.isfinite(of_same.log_sum[own])
        gradient = (of_all.mean[own] - of_same.mean[own]) / temperature
        ctx.save_for_backward(gradient * has_neighbour.unsqueeze(1))
        return torch.where(has_neighbour, of_all.log_sum[own] - of_same.log_sum[own], 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (by_query,) = ctx.saved_tensors
        return gradient.unsqueeze(1) * by_query, None, None, None, None
