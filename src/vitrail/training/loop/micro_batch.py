"""How many samples a device takes at a time: the most that fit a GPU; on a CPU by a rule of sizes, never by a clock."""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from vitrail.layers.kept_memory import memory_of_machine
from vitrail.training.parallel.distributed import World

_LOGGER = logging.getLogger(__name__)
_LARGEST = 1024
# A CPU computes 8 samples at a time nearly as fast as more, but every micro-batch costs a pass over all gradients.
_LARGEST_ON_CPU, _ENOUGH_ON_CPU = 128, 8
_ACTIVATIONS_ON_CPU = 512 * 2**20  # bytes that are kept for the backward pass of a micro-batch
_SMALLEST = 2  # samples of a micro-batch: a pair
_SMALLEST_OF_LANE = 4  # samples: fewer cost more than another lane wins
_SHARE_OF_MEMORY = 0.9  # that a trial of several devices may fill
_MEMORY_UNTOLD = 8 * 2**30  # bytes, where a machine does not tell how much it has
_SHARE_OF_MACHINE = 0.5  # of its memory, that activations of all lanes may take


def choose_micro_batch(
    model: nn.Module,
    judge: Callable[[nn.Module, int], Tensor],
    *,
    num_samples: int,
    num_views: int = 1,
    num_lanes: int = 1,
    unit: int = 1,
    device: torch.device,
    together: World | None = None,
) -> int:
    """The micro-batch for `num_samples` a step, always even; `judge` gives the loss of a batch of so many.

    Where a task counts something else than samples, such as tokens, a usual sample has `unit` of these.

    A GPU tries what fits its memory, on a copy of the model; with a divided model, which can't be copied, on itself,
    and then all processes of `together` do the same. On other devices it follows from what two samples keep for the
    backward pass. Batch normalisation learns something else from other parts of a batch: with it, it is all that is
    ever taken.
    """
    if device.type != "cuda":
        return _choose_by_sizes(
            model, judge, num_samples=num_samples, num_views=num_views, num_lanes=num_lanes, unit=unit
        )
    trial = copy.deepcopy(model) if together is None else model

    def attempt(count: int) -> None:
        judge(trial, count).backward()
        torch.cuda.synchronize(device)

    largest = _even(min(num_samples, _LARGEST * unit))
    with _kept_buffers(model):
        # Beside the weights and gradients there will be two moments of the optimizer and a moving average: a copy of
        # the model takes the place of one of them here, this of the others.
        num_reserved = 2 if together is None else 3
        reserved = [torch.empty_like(parameter) for parameter in model.parameters() for _ in range(num_reserved)]
        if together is None:
            count = _largest_that_fits(largest, attempt)
        else:
            count = _largest_by_doubling(largest, attempt, device=device, together=together)
        del reserved
    model.zero_grad()
    return count


def _choose_by_sizes(
    model: nn.Module,
    judge: Callable[[nn.Module, int], Tensor],
    *,
    num_samples: int,
    num_views: int,
    num_lanes: int,
    unit: int,
) -> int:
    if num_samples < 2 * _SMALLEST:  # there is nothing to choose
        return _SMALLEST
    if any(isinstance(part, _BatchNorm) and part.training for part in model.modules()):
        return _even(min(num_samples, _LARGEST_ON_CPU // num_views * unit))
    with _kept_buffers(model):
        size = max(1, count_kept_bytes(model, lambda: judge(model, 2 * unit)) // 2)
    suits_cores = min(max(_ENOUGH_ON_CPU, _ACTIVATIONS_ON_CPU // size), _LARGEST_ON_CPU)
    fits_memory = int(_SHARE_OF_MACHINE * (memory_of_machine() or _MEMORY_UNTOLD) / num_lanes) // size
    fills_lanes = max(_SMALLEST_OF_LANE * unit, -(-num_samples // num_lanes))
    count = _even(min(num_samples, suits_cores * unit, fits_memory * unit, fills_lanes))
    count = _fill_rounds(count, num_samples=num_samples, num_lanes=num_lanes)
    _LOGGER.info("micro-batch of %d: a sample keeps %.1f MB for the backward pass", count, size / 1e6)
    return count


def _fill_rounds(count: int, *, num_samples: int, num_lanes: int) -> int:
    """A micro-batch no larger, of which all lanes have one to compute until the end of a step: three take two lanes as
    long as four of that size."""
    num_parts = -(-num_samples // count)
    if num_parts <= num_lanes:
        return count
    num_filled = -(-num_parts // num_lanes) * num_lanes
    filled = -(-num_samples // num_filled)
    return filled + filled % 2


def count_kept_bytes(model: nn.Module, run: Callable[[], Tensor]) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the weights."""
    weights = {_storage_of(parameter).data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = _storage_of(tensor)
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = run()
    del loss
    return sum(kept.values())


def _storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor; of one that is divided over processes, of this one's part."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


@contextlib.contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put running statistics back after the block as they were before."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])


def _largest_that_fits(largest: int, attempt: Callable[[int], None]) -> int:
    count = largest
    while True:
        try:
            for _ in range(2):  # gradients take their memory in the first backward pass
                attempt(count)
            return count
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            if count <= 2:
                raise ValueError(
                    "not even two images fit the memory of the device: take a smaller model or image_size, "
                    "run.checkpointing=true, or sharding=full on several devices"
                ) from None
            count = _even(count // 2)


def _largest_by_doubling(largest: int, attempt: Callable[[int], None], *, device: torch.device, together: World) -> int:
    """Doubling as long as twice the activations fit every device: running out in one would leave the others waiting."""
    count = 2
    total = torch.cuda.get_device_properties(device).total_memory
    before = torch.cuda.memory_allocated(device)
    while count < largest:
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(2):  # gradients take their memory in the first backward pass
            attempt(count)
        peak = torch.cuda.max_memory_allocated(device)
        [is_full] = together.any(peak + (peak - before) > _SHARE_OF_MEMORY * total)
        if is_full:
            break
        count = _even(min(2 * count, largest))
    return count


def _even(count: int) -> int:
    """The size made even, because neighbours are mixed in pairs."""
    return max(_SMALLEST, count - count % 2)
