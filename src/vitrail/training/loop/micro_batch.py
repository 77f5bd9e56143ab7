"""How many samples a device takes at a time, found by measurement: the most that fit a GPU, the fastest on a CPU."""

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from vitrail.training.parallel.distributed import World

_LOGGER = logging.getLogger(__name__)
_LARGEST, _SMALLEST = 1024, 8
# A CPU is fastest when activations stay in its caches; nothing is gained above this.
_LARGEST_ON_CPU = 128
_ENOUGH_SECONDS = 3.0
_SHARE_OF_MEMORY = 0.9  # that a trial of several devices may fill


def choose_micro_batch(
    model: nn.Module,
    judge: Callable[[nn.Module, int], Tensor],
    *,
    num_samples: int,
    num_views: int = 1,
    device: torch.device,
    together: World | None = None,
) -> int:
    """The micro-batch for `num_samples` a step, always even; `judge` gives the loss of a batch of so many.

    Steps of a copy of the model are timed to find it; of a divided model, which can't be copied, its own, and then all
    processes go by what the main one of `together` measures. Batch normalisation learns something else from other
    parts of a batch, so with it the choice must not depend on a clock: on a CPU it is all that is ever taken.
    """
    if device.type != "cuda" and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        return _even(min(num_samples, _LARGEST_ON_CPU // num_views))
    trial = copy.deepcopy(model) if together is None else model

    def seconds(count: int) -> float:
        _synchronize(device)
        start = time.perf_counter()
        judge(trial, count).backward()
        _synchronize(device)
        passed = time.perf_counter() - start
        return passed if together is None else together.share(passed)

    largest = _even(min(num_samples, _LARGEST))
    with _kept_buffers(model):
        if device.type != "cuda":
            count = _fastest(largest, seconds)
        else:
            # Beside the weights and gradients there will be two moments of the optimizer and a moving average: a copy
            # of the model takes the place of one of them here, this of the others.
            num_reserved = 2 if together is None else 3
            reserved = [torch.empty_like(parameter) for parameter in model.parameters() for _ in range(num_reserved)]
            if together is None:
                count = _largest_that_fits(largest, seconds)
            else:
                count = _largest_by_doubling(largest, seconds, device=device, together=together)
            del reserved
    model.zero_grad()
    return count


@contextlib.contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put running statistics back after the block as they were before."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])


def _largest_that_fits(largest: int, seconds: Callable[[int], float]) -> int:
    count = largest
    while True:
        try:
            for _ in range(2):  # gradients take their memory in the first backward pass
                seconds(count)
            return count
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            if count <= 2:
                raise ValueError(
                    "not even two images fit the memory of the device: take a smaller model or image_size, "
                    "run.checkpointing=true, or sharding=full on several devices"
                ) from None
            count = _even(count // 2)


def _largest_by_doubling(
    largest: int, seconds: Callable[[int], float], *, device: torch.device, together: World
) -> int:
    """Doubling as long as twice the activations fit every device: running out in one would leave the others waiting."""
    count = 2
    total = torch.cuda.get_device_properties(device).total_memory
    before = torch.cuda.memory_allocated(device)
    while count < largest:
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(2):  # gradients take their memory in the first backward pass
            seconds(count)
        peak = torch.cuda.max_memory_allocated(device)
        [is_full] = together.any(peak + (peak - before) > _SHARE_OF_MEMORY * total)
        if is_full:
            break
        count = _even(min(2 * count, largest))
    return count


def _fastest(largest: int, seconds: Callable[[int], float]) -> int:
    """The fastest size, found by doubling: a CPU has its best where the activations fit its caches."""
    count = _even(min(largest, _SMALLEST))
    seconds(count)  # the first pass of a process is slow
    best, best_rate, spent = count, 0.0, 0.0
    while True:
        first, second = seconds(count), seconds(count)
        rate, spent = count / min(first, second), spent + first + second
        if rate > 1.03 * best_rate:
            best, best_rate = count, rate
        is_largest = count >= min(largest, _LARGEST_ON_CPU)
        if is_largest or rate < 0.9 * best_rate or spent > _ENOUGH_SECONDS:
            break
        count = _even(min(2 * count, largest))
    _LOGGER.info("micro-batch of %d: %.0f images/s in steps alone", best, best_rate)
    return best


def _even(count: int) -> int:
    """The size made even, because neighbours are mixed in pairs."""
    return max(2, count - count % 2)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
