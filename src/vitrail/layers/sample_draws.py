"""Random numbers of layers that belong to a sample and a step, whatever part of a batch the sample is computed in."""

import torch
from torch import Tensor, nn

# Steele, Lea, Flood 2014 (SplitMix64): the increment, and the two factors of its finaliser, as signed 64-bit numbers.
_INCREMENT, _FIRST, _SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class SampleDraws:
    """What the random layers of one model draw from, while a micro-batch is computed.

    A number follows from the key (of the run and the step), the layer and the row alone: the place of the sample in the
    global batch and, where a sample comes in several views, the view. So it is the same for any micro-batch, number of
    processes, threads and device, and again the same when activations are recomputed.
    """

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self._key = self._first = self._num_samples = 0
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def begin(self, key: int, *, first: int, num_samples: int) -> None:
        """Draw for these samples of a step from now on: `first` is the place of the first in the global batch."""
        self._key, self._first, self._num_samples = key, first, num_samples
        self._tables.clear()

    def uniform(self, layer: int, *, rows: int, device: torch.device) -> Tensor:
        """One number in [0, 1) for each row, float32 [rows]; made for all layers at once."""
        table = self._tables.get((rows, device))
        if table is None:
            table = self._tables[rows, device] = (self._states(rows, device) >> 40 & 0xFFFFFF).float() / 2**24
        return table[layer]

    def keeps(self, layer: int, *, like: Tensor, rate: float) -> Tensor:
        """For each number of a tensor, whether it is kept when `rate` of them are dropped: bool, in its shape."""
        rows, size = like.shape[0], like[0].numel()
        states = self._states(rows, like.device)[layer]
        counter = torch.arange(-(-size // 4), device=like.device) * _INCREMENT
        quarters = _mix(states[:, None] + counter).view(torch.int16)[:, :size]  # four draws of 16 bits each
        return (quarters >= round(rate * 2**16) - 2**15).view(like.shape)

    def _states(self, rows: int, device: torch.device) -> Tensor:
        """A well-mixed number for each layer and row, int64 [layers, rows]."""
        num_views, left = divmod(rows, self._num_samples)
        assert left == 0, f"{rows} rows are no whole number of views of {self._num_samples} samples"
        places = self._first * num_views + torch.arange(rows, device=device)
        layers = torch.arange(1, self.num_layers + 1, device=device)
        return _mix(_mix(self._key + layers[:, None] * _INCREMENT) + places * _INCREMENT)


def _mix(state: Tensor) -> Tensor:
    """SplitMix64's finaliser; `>>` keeps the sign, so that what it brings in from above is masked out."""
    state = (state ^ (state >> 30 & (1 << 34) - 1)) * _FIRST
    state = (state ^ (state >> 27 & (1 << 37) - 1)) * _SECOND
    return state ^ (state >> 31 & (1 << 33) - 1)


class RandomLayer(nn.Module):
    """A layer that draws in training: from `SampleDraws` where it has been given one, else from torch's generator."""

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

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class DropPath(RandomLayer):
    """Stochastic depth: a sample skips the branch with probability `rate`; the others are scaled to keep the mean."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__(rate)

    def forward(self, update: Tensor) -> Tensor:
        if not self.is_active:
            return update
        keep = 1.0 - self.rate
        if self.draws is None:
            kept = update.new_empty(update.shape[0]).bernoulli_(keep)
        else:
            kept = (self.draws.uniform(self.number, rows=update.shape[0], device=update.device) >= self.rate).to(update)
        return update * kept.div_(keep).view(-1, *[1] * (update.ndim - 1))


class Dropout(RandomLayer):
    """Dropout of single numbers; what is left is scaled to keep the mean."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_active:
            return x
        if self.draws is None:
            return nn.functional.dropout(x, self.rate)
        return x * self.draws.keeps(self.number, like=x, rate=self.rate) / (1.0 - self.rate)


def give_draws(model: nn.Module) -> SampleDraws:
    """Let all random layers of a model draw from one source, which is returned; who trains it says where it stands."""
    layers = [layer for layer in model.modules() if isinstance(layer, RandomLayer) and layer.rate > 0.0]
    draws = SampleDraws(len(layers))
    for number, layer in enumerate(layers):
        layer.draws, layer.number = draws, number
    return draws
