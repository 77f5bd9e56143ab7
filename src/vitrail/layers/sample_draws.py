"""Random numbers of layers that belong to a sample and a step, whatever part of a batch the sample is computed in."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

# Steele, Lea, Flood 2014 (SplitMix64): the increment, and the two factors of its finaliser, as signed 64-bit numbers.
_INCREMENT, _FIRST, _SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class _Rows(NamedTuple):
    """What is drawn for the rows that go through a model together."""

    states: Tensor  # [layers, rows]
    numbers: Tensor  # [layers, rows], in [0, 1)


class SampleDraws:
    """What the random layers of one model draw from, while a micro-batch is computed.

    A number follows from the key (of the run and the step), the layer and the row alone: the place of the sample in the
    global batch and, where a sample comes in several views, the view. So it is the same for any micro-batch, number of
    processes, threads and device, and again the same when activations are recomputed.

    Views of several sizes go through the model one size after the other. Which of these passes a layer is in shows by
    the number of its rows; passes of equally many rows share their draws.
    """

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self._passes: dict[int, _Rows] = {}  # by their number of rows
        self.is_narrowed = False  # whether only some of the rows go through the model now

    def begin(
        self,
        key: int,
        *,
        first: int,
        num_samples: int,
        num_views: int = 1,
        views_of_passes: Sequence[int] = (),  # how many of the views go through the model together; none: all
        device: torch.device | None = None,
    ) -> None:
        """Draw for these samples of a step from now on: `first` is the place of the first in the global batch.

        All is drawn here and at once: a compiled model then has nothing to trace but two tensors.
        """
        self._passes = {}
        if self.num_layers == 0:
            return
        places = first * num_views + torch.arange(num_samples * num_views, device=device)
        layers = torch.arange(1, self.num_layers + 1, device=device)
        states = _mix(_mix(key + layers[:, None] * _INCREMENT) + places * _INCREMENT)
        by_view = states.unflatten(1, (num_samples, num_views))
        for part in by_view.split(list(views_of_passes or (num_views,)), dim=2):
            own = part.flatten(1)
            self._passes.setdefault(own.shape[1], _Rows(own, (own >> 40 & 0xFFFFFF).float() / 2**24))

    def knows(self, num_rows: int) -> bool:
        """Whether a pass of so many rows was announced."""
        return num_rows in self._passes

    def uniform(self, layer: int, *, num_rows: int) -> Tensor:
        """One number in [0, 1) for each row, float32 [rows]."""
        return self._passes[num_rows].numbers[layer]

    def numbers(self, layer: int, *, row: int, num_rows: int, count: int) -> Tensor:
        """So many random numbers of 64 bits for one row, int64 [count]: in their order anything can be shuffled."""
        state = self._passes[num_rows].states[layer, row]
        return _mix(state + torch.arange(count, device=state.device) * _INCREMENT)

    @contextlib.contextmanager
    def only(self, rows: Sequence[int], *, num_rows: int) -> Iterator[None]:
        """Inside the block let some of the rows of a pass go through the model, as they would among the others."""
        if not self.knows(num_rows):
            yield
            return
        whole, chosen = self._passes[num_rows], list(rows)
        self.is_narrowed = True
        try:
            with self.as_of({len(chosen): _Rows(whole.states[:, chosen], whole.numbers[:, chosen])}):
                yield
        finally:
            self.is_narrowed = False

    @property
    def passes(self) -> "dict[int, _Rows]":
        """What is drawn now, for `as_of`."""
        return self._passes

    @contextlib.contextmanager
    def as_of(self, passes: "dict[int, _Rows]") -> Iterator[None]:
        """Inside the block draw what was drawn when `passes` were so, as a pass does that is computed again."""
        before, self._passes = self._passes, passes
        try:
            yield
        finally:
            self._passes = before

    def keeps(self, layer: int, *, like: Tensor, rate: float) -> Tensor:
        """For each number of a tensor, whether it is kept when `rate` of them are dropped: bool, in its shape."""
        size = like[0].numel()
        counter = torch.arange(-(-size // 4), device=like.device) * _INCREMENT
        # Four draws of 16 bits from each number of 64.
        states = self._passes[like.shape[0]].states[layer]
        quarters = _mix(states[:, None] + counter).view(torch.int16)[:, :size]
        return (quarters >= round(rate * 2**16) - 2**15).view(like.shape)

    def integers(self, layer: int, *, num_rows: int, length: int, stop: int) -> Tensor:
        """`length` numbers of 0 ... stop - 1, a power of two, for each row: int64 [rows, length]."""
        places = torch.arange(length, device=self._passes[num_rows].states.device) * _INCREMENT
        return _mix(self._passes[num_rows].states[layer][:, None] + places) & (stop - 1)


def hash_numbers(keys: Tensor) -> Tensor:
    """A number in [0, 1) for each whole number, which follows from it alone: float32."""
    return (_mix(_mix(keys * _INCREMENT) + _INCREMENT) >> 40 & 0xFFFFFF).float() / 2**24


def _mix(state: Tensor) -> Tensor:
    """SplitMix64's finaliser; `>>` keeps the sign, so that what it brings in from above is masked out."""
    state = (state ^ (state >> 30 & (1 << 34) - 1)) * _FIRST
    state = (state ^ (state >> 27 & (1 << 37) - 1)) * _SECOND
    return state ^ (state >> 31 & (1 << 33) - 1)


class RandomLayer(nn.Module):
    """A layer that draws in training: from `SampleDraws` where it has been given one, else from torch's generator.

    From torch's too where it sees other rows than those that were announced, as in a training procedure of one's own.
    """

    rate: float

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.draws: SampleDraws | None = None
        self.number = 0  # among the random layers of its model

    @property
    def is_active(self) -> bool:
        """Whether anything is drawn."""
        return self.training and self.rate > 0.0

    def draws_for(self, x: Tensor) -> SampleDraws | None:
        """Where the numbers for these rows come from; None: torch's generator."""
        return self.draws if self.draws is not None and self.draws.knows(x.shape[0]) else None

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class DropPath(RandomLayer):
    """Stochastic depth: a sample skips the branch with probability `rate`; the others are scaled to keep the mean."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__(rate)

    def forward(self, update: Tensor) -> Tensor:
        return self.weigh(update, self.weights(update))

    def weights(self, x: Tensor) -> Tensor | None:
        """What the branch of each row is multiplied by, 0 or more than 1, [rows]; None: nothing is drawn."""
        if not self.is_active:
            return None
        keep, draws = 1.0 - self.rate, self.draws_for(x)
        if draws is None:
            kept = x.new_empty(x.shape[0]).bernoulli_(keep)
        else:
            kept = (draws.uniform(self.number, num_rows=x.shape[0]) >= self.rate).to(x.dtype)
        return kept.div_(keep)

    @staticmethod
    def weigh(update: Tensor, weights: Tensor | None) -> Tensor:
        """The update with each row multiplied by its weight."""
        return update if weights is None else update * weights.view(-1, *[1] * (update.ndim - 1)).to(update.dtype)


class Dropout(RandomLayer):
    """Dropout of single numbers; what is left is scaled to keep the mean."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_active:
            return x
        draws = self.draws_for(x)
        if draws is None:
            return nn.functional.dropout(x, self.rate)
        return x * draws.keeps(self.number, like=x, rate=self.rate) / (1.0 - self.rate)


class ChannelDropout(RandomLayer):
    """Dropout of whole channels of [batch, channels, height, width]; those that are left are scaled."""

    def forward(self, maps: Tensor) -> Tensor:
        if not self.is_active:
            return maps
        draws = self.draws_for(maps)
        if draws is None:
            return nn.functional.dropout2d(maps, self.rate)
        channels = maps[:, :, :1, :1]
        return maps * (draws.keeps(self.number, like=channels, rate=self.rate) / (1.0 - self.rate))


def draws_of(module: nn.Module) -> SampleDraws | None:
    """What the random layers inside a module draw from; None where there are none, or torch's generator does."""
    layers = (layer for layer in module.modules() if isinstance(layer, RandomLayer))
    return next((layer.draws for layer in layers if layer.draws is not None), None)


def give_draws(model: nn.Module) -> SampleDraws:
    """Let all random layers of a model draw from one source, which is returned; who trains it says where it stands."""
    layers = [layer for layer in model.modules() if isinstance(layer, RandomLayer) and layer.rate > 0.0]
    draws = SampleDraws(len(layers))
    for number, layer in enumerate(layers):
        layer.draws, layer.number = draws, number
    return draws
