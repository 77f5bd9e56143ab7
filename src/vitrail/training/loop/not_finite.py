"""What to say when a loss or a gradient is not a number."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.contract import Batch
from vitrail.tasks.contract import Losses

_NUM_SHOWN = 3


def describe_not_finite(
    moment: str,
    *,
    findings: Sequence[tuple[str, list[int]] | None],
    batches: Sequence[Batch],
    locate: Callable[[int], str],
    newest: Path | None,
) -> str:
    """One line: the step, the tensor, the samples, the last good checkpoint and what may help.

    `findings` are those of all processes, of which the first that found something is told.
    """
    everything = "the loss", [index for batch in batches for index in batch.indices.tolist()]
    where, samples = next((found for found in findings if found is not None), everything)
    places = [locate(index) for index in samples]
    shown = ", ".join(places[:_NUM_SHOWN])
    more = f" and {len(places) - _NUM_SHOWN} more" if len(places) > _NUM_SHOWN else ""
    kept = f"the checkpoint {newest} is good" if newest else "there is no checkpoint yet"
    return (
        f"{moment}; first not finite: {where}; samples {shown}{more}; {kept}: try a lower lr, optimizer.clip=1, "
        "precision=fp32 or run.on_nan=skip"
    )


def find_not_finite(
    model: nn.Module,
    judge: Callable[[Batch, int], Losses] | None,
    batches: Sequence[Batch],
    *,
    has_own_gradients: bool,
) -> tuple[str, list[int]] | None:
    """What went wrong first and for which samples, by going through the step once more.

    `judge` says what a batch costs, by its place among them; without it only the gradients that are there are looked
    at. Where the gradients are this process's own they are computed again, for clipping spreads one that is not a
    number to all.
    """
    order: list[str] = []
    if judge is not None:
        if has_own_gradients:
            model.zero_grad()
        for place, batch in enumerate(batches):
            with _watched(model) as watch, torch.set_grad_enabled(has_own_gradients):
                losses = judge(batch, place)
            if watch.where is not None:
                return watch.where, _pick(batch, watch.is_bad)
            if not is_finite(losses.total):
                return "the loss", batch.indices.tolist()
            if has_own_gradients:
                losses.total.backward()
            order = watch.order
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    # From the output on; what belongs to no layer of its own, such as tokens and positions, comes in at the beginning.
    rank = {name: place for place, name in enumerate(order)}
    for name in sorted(gradients, key=lambda name: rank.get(name.rpartition(".")[0], -1), reverse=True):
        if not is_finite(gradients[name]):
            return f"the gradient of {name}", [index for batch in batches for index in batch.indices.tolist()]
    return None


@dataclass
class _Watch:
    """What a forward pass has shown."""

    order: list[str] = field(default_factory=list)  # layers as they ran
    where: str | None = None  # the first thing that is not finite
    is_bad: Tensor | None = None  # [batch]: in which images, if that can be told


@contextlib.contextmanager
def _watched(model: nn.Module) -> Iterator[_Watch]:
    """Look at what every layer gives inside the block, in the order in which they run."""
    watch, handles = _Watch(), []
    for name, module in model.named_modules():
        if not list(module.children()):

            def look(module: nn.Module, inputs: tuple[Any, ...], output: Any, name: str = name) -> None:
                watch.order.append(name)
                if watch.where is None and isinstance(output, Tensor) and not is_finite(output):
                    watch.where = _name_cause(model, module, name, inputs)
                    watch.is_bad = ~torch.isfinite(output).flatten(1).all(dim=1) if output.ndim > 1 else None

            handles.append(module.register_forward_hook(look))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _name_cause(model: nn.Module, module: nn.Module, name: str, inputs: tuple[Any, ...]) -> str:
    """The first thing that is not finite: weights, an output, or an input that came from no layer."""
    own = next((key for key, value in module.named_parameters() if not is_finite(value)), None)
    if own is not None:
        return f"the weights {name}.{own}"
    if all(is_finite(value) for value in inputs if isinstance(value, Tensor)):
        return f"the output of {name}"
    others = next((key for key, value in model.named_parameters() if not is_finite(value)), None)
    return f"the weights {others}" if others is not None else f"the input of {name}"


def _pick(batch: Batch, is_bad: Tensor | None) -> list[int]:
    """The samples whose rows are bad, where rows are images; else all."""
    if is_bad is None or len(is_bad) != len(batch.indices):
        return batch.indices.tolist()
    return batch.indices[is_bad.cpu()].tolist()


def is_finite(tensor: Tensor) -> bool:
    """Whether every number of a tensor is finite."""
    return bool(torch.isfinite(tensor).all())
