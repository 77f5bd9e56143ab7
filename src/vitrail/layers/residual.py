"""Residual structure: branches, their scales and how they join the shortcut (CaiT section 2; Three things eq. 2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitrail.layers.recording import is_recorded
from vitrail.layers.sample_draws import Dropout, DropPath, RandomLayer

COUNTED_DEVICES = ("cpu",)  # that know at once how many rows are kept; others would have to be waited for


class LayerScale(nn.Module):
    """A learned weight per channel on the output of a branch (CaiT eq. 4).

    `init` is "constant" (every weight is `value`) or "uniform" (drawn from [0, 2 value], supplement A.4).
    A frozen one keeps the values it is given: the paper's re-training control.
    """

    def __init__(self, dim: int, *, value: float, init: str = "constant", is_frozen: bool = False) -> None:
        super().__init__()
        self.value, self.init = value, init
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=not is_frozen)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.init == "uniform":
            nn.init.uniform_(self.weight, 0.0, 2.0 * self.value)
        else:
            nn.init.constant_(self.weight, self.value)

    def forward(self, update: Tensor) -> Tensor:
        return update * self.weight


class ScalarScale(nn.Module):
    """One learned weight for the whole branch: ReZero starts it at 0, Fixup at 1 (CaiT eq. 3)."""

    def __init__(self, *, value: float) -> None:
        super().__init__()
        self.value = value
        self.weight = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.value)

    def forward(self, update: Tensor) -> Tensor:
        return update * self.weight


class ScalarBias(nn.Module):
    """One learned number added to every component, which Fixup puts before linear layers and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class ConstantScaling(nn.Module):
    """Shortcut and branch both halved: gating with frozen gates (supplement A.2, after He et al. 2016)."""

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        return 0.5 * (x + update)


class Gating(nn.Module):
    """A gate g(x) = sigmoid(W x + b) on the shortcut, 1 - g, and if `exclusive` on the branch too, g (supplement A.2).

    b starts well below zero so that the shortcut starts close to the identity, as He et al. found necessary.
    """

    initial_bias = -6.0

    def __init__(self, dim: int, *, exclusive: bool) -> None:
        super().__init__()
        self.exclusive = exclusive
        self.gate = nn.Linear(dim, dim)

    def finish_init(self) -> None:
        nn.init.constant_(self.gate.bias, self.initial_bias)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return (1.0 - gate) * x + (gate * update if self.exclusive else update)


class LinearShortcut(nn.Module):
    """A learned linear map in place of the identity, the transformer's 1x1 convolution shortcut (supplement A.2)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        return self.linear(x) + update


class DropoutShortcut(nn.Module):
    """Dropout of rate one half on the shortcut (supplement A.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = Dropout(0.5)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        return self.dropout(x) + update


class PostNorm(nn.Module):
    """Normalisation after the sum, as in the first transformers (CaiT section 2)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        return self.norm(x + update)


class Branch(nn.Module):
    """What a residual layer adds to its input: drop_path(scale(dropout(mix(norm(x))))).

    With a context, the branch updates x from both: mix sees norm(x) and norm(context). What a sample would lose by
    drop_path is not computed in the first place.
    """

    def __init__(
        self,
        *,
        norm: nn.Module,
        mix: nn.Module,
        scale: nn.Module | None = None,
        drop_path: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.mix = mix
        self.scale = scale if scale is not None else nn.Identity()
        self.dropout = Dropout(dropout) if dropout else nn.Identity()
        self.drop_path = DropPath(drop_path)

        # Neither statistics of the batch nor other draws: a row is computed as it would be among others.
        together = (_BatchNorm, RandomLayer)
        self.is_by_row = not dropout and not any(
            isinstance(part, together) for part in (*norm.modules(), *mix.modules())
        )

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        weights = self.drop_path.weights(x)
        rows = self._kept_rows(weights)
        if weights is None or rows is None:
            return self.drop_path.weigh(self._update(x, context), weights)
        some = self._update(x.index_select(0, rows), None if context is None else context.index_select(0, rows))
        some = self.drop_path.weigh(some, weights.index_select(0, rows))
        return some.new_zeros(x.shape[0], *some.shape[1:]).index_copy_(0, rows, some)

    def _update(self, x: Tensor, context: Tensor | None) -> Tensor:
        mixed = self.mix(self.norm(x)) if context is None else self.mix(self.norm(x), self.norm(context))
        return self.scale(self.dropout(mixed))

    def _kept_rows(self, weights: Tensor | None) -> Tensor | None:
        """The rows to compute where others are dropped; None: all.

        Not on a GPU, which would wait for their number, nor in a compiled model, compiled for each. All rows are
        computed too where all are dropped: gradients of zero are not the same as none to an optimizer.
        """
        if weights is None or not self.is_by_row or weights.device.type not in COUNTED_DEVICES or is_recorded():
            return None
        rows = weights.nonzero().squeeze(1)
        return rows if 0 < len(rows) < len(weights) else None


class Residual(nn.Module):
    """x + branch_1(x) + ... + branch_n(x); `join` replaces the plain sum where a paper tries another shortcut."""

    def __init__(self, branches: Sequence[nn.Module], *, join: nn.Module | None = None) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.join = join

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        update = self.branches[0](x, context)
        for branch in self.branches[1:]:
            update = update + branch(x, context)
        return x + update if self.join is None else self.join(x, update)


class Block(nn.Module):
    """The two residual layers all these models repeat: one across patches, then one within each."""

    def __init__(self, *, communication: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.communication = communication
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.feed_forward(self.communication(x, context))
