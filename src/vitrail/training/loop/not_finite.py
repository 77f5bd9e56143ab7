"""What to say when a loss or a gradient is not a number."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail.data.contract import ImageBatch as Batch
from vitrail.data.draws import Draws
from vitrail.evaluation.predict import autocast
from vitrail.tasks.contract import Stateful
from vitrail.training.parallel.sharding import is_sharded

if TYPE_CHECKING:
    from vitrail.training.loop.stage import Stage

_NUM_SHOWN = 3


def describe_not_finite(stage: "Stage", loss: Tensor, norm: Tensor, batches: list[Batch]) -> str:
    """One line: the step, the tensor, the images, the last good checkpoint and what may help.

    All processes come here together, and the main one, which speaks, tells of the first that found something.
    """
    findings = [finding for finding in stage.world.gather(_find(stage, batches)) if finding is not None]
    everything = [index for batch in batches for index in batch.indices.tolist()]
    where, samples = findings[0] if findings else ("the loss", everything)
    shown = ", ".join(stage.data.train.locate(index) for index in samples[:_NUM_SHOWN])
    more = f" and {len(samples) - _NUM_SHOWN} more" if len(samples) > _NUM_SHOWN else ""
    newest = stage.checkpoints.newest()
    kept = f"the checkpoint {newest} is good" if newest else "there is no checkpoint yet"
    return (
        f"step {stage.step} (epoch {stage.epoch:.2f}): loss {loss.item():g}, gradient norm {norm.item():g}; first not "
        f"finite: {where}; samples {shown}{more}; {kept}: try a lower lr, optimizer.clip=1, precision=fp32 or "
        "run.on_nan=skip"
    )


def _find(stage: "Stage", batches: list[Batch]) -> tuple[str, list[int]] | None:
    """What went wrong first and for which samples, by going through the step once more."""
    model, order = stage.model, list[str]()
    # What processes exchange with each other (parts of the model, of a memory) needs all of them to do the same.
    is_exchanged = is_sharded(model) or (isinstance(stage.objective, Stateful) and stage.world.num_ranks > 1)
    if not is_exchanged:
        # Gradients as they were before clipping, which spreads one that is not a number to all.
        has_gradients = stage.world.num_ranks == 1
        if has_gradients:
            model.zero_grad()
        torch.manual_seed(Draws(stage.seed, stage.step, stage.world.rank, "model").integer(2**62))
        for batch in batches:
            with _watched(model) as watch, torch.set_grad_enabled(has_gradients), autocast(stage.device, stage.dtype):
                losses = stage.objective(model, stage.to_device(batch, epoch=stage.step // stage.sampler.num_steps))
            if watch.where is not None:
                return watch.where, _pick(batch, watch.is_bad)
            if not is_finite(losses.total):
                return "the loss", batch.indices.tolist()
            if has_gradients:
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
    """Weights before what is made with them; an input that is not finite came from what belongs to no layer."""
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
    """Whether all of it is."""
    return bool(torch.isfinite(tensor).all())
