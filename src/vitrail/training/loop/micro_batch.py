"""How many images a device takes at a time, found by measurement: the most that fit a GPU, the fastest on a CPU."""

import copy
import logging
import time
from collections.abc import Callable

import torch
from torch import nn

from vitrail.data.contract import ImageBatch as Batch
from vitrail.evaluation.predict import autocast
from vitrail.tasks.contract import Objective, Stateful

_LOGGER = logging.getLogger(__name__)
_LARGEST, _SMALLEST = 1024, 8
# A CPU is fastest when activations stay in its caches; nothing is gained above this.
_LARGEST_ON_CPU = 128
_ENOUGH_SECONDS = 3.0


def choose_micro_batch(
    model: nn.Module,
    objective: Objective,
    *,
    num_images: int,
    num_views: int = 1,
    image_size: tuple[int, int],
    num_classes: int,
    has_answers: bool = False,
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    """The micro-batch for `num_images` a step, always even; steps of a copy of the model are timed to find it.

    Batch normalisation learns something else from other parts of a batch, so with it the choice must not depend on a
    clock: on a CPU it is all that is ever taken.
    """
    if device.type != "cuda" and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        return _even(min(num_images, _LARGEST_ON_CPU // num_views))
    model = copy.deepcopy(model)

    def seconds(count: int) -> float:
        images = torch.rand(*((count,) if num_views == 1 else (count, num_views)), 3, *image_size, device=device)
        batch = Batch(images, torch.randint(num_classes, (count,), device=device), torch.arange(count))
        if has_answers:
            batch = batch._replace(answers=torch.full((count, num_classes), 1.0 / num_classes, device=device))
        _synchronize(device)
        start = time.perf_counter()
        with autocast(device, dtype):
            loss = objective(model, batch).total
        loss.backward()
        if isinstance(objective, Stateful):
            objective.skip_step()
        _synchronize(device)
        return time.perf_counter() - start

    largest = _even(min(num_images, _LARGEST))
    if device.type != "cuda":
        return _fastest(largest, seconds)
    # Beside the weights and gradients there will be two moments of the optimizer and a moving average: the copy of the
    # model takes the place of one of them here, this of the others.
    reserved = [torch.empty_like(parameter) for parameter in model.parameters() for _ in range(2)]
    count = _largest_that_fits(largest, seconds)
    del reserved
    return count


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


def _fastest(largest: int, seconds: Callable[[int], float]) -> int:
    """Doubling as long as it gets faster: a CPU has its best where the activations fit its caches."""
    count = _even(min(largest, _SMALLEST))
    seconds(count)  # the first pass of a process is slow
    best, best_rate, started = count, 0.0, time.monotonic()
    while True:
        rate = count / min(seconds(count), seconds(count))
        if rate > 1.03 * best_rate:
            best, best_rate = count, rate
        is_largest = count >= min(largest, _LARGEST_ON_CPU)
        if is_largest or rate < 0.9 * best_rate or time.monotonic() - started > _ENOUGH_SECONDS:
            break
        count = _even(min(2 * count, largest))
    _LOGGER.info("micro-batch of %d: %.0f images/s in steps alone", best, best_rate)
    return best


def _even(count: int) -> int:
    """Pairs are mixed with each other, so a part of a batch is even."""
    return max(2, count - count % 2)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
