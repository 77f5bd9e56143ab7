"""Answers of a model, batch by batch, on the device and in the precision that suit it."""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from vitrail.data.blend import Normalize
from vitrail.data.contract import ImageBatch
from vitrail.evaluation.lanes import Lanes
from vitrail.layers.bfloat16 import has_native_bfloat16

PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def choose_device(name: str = "auto") -> torch.device:
    """The device of that name; the best there is for "auto"."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"there is no device {name!r} here: try auto or cpu") from None
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The type that products are computed in; for "auto" bf16 where the device is fast at it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {name!r}")
    if name != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    is_fast = device.type == "cpu" and has_native_bfloat16()
    return torch.bfloat16 if is_fast else torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Compute products in that type; nothing to do for float32.

    A CPU computes parts of a batch side by side, and torch has one cache of rounded weights for all threads, which each
    of them empties when it is done: how often a weight is rounded, and with it the rounding of its gradient, would
    depend on the clock. So a CPU keeps none.
    """
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype, cache_enabled=device.type != "cpu")


def predict(
    model: nn.Module,
    batches: Iterable[ImageBatch],
    *,
    normalize: Normalize,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    num_lanes: int | None = None,
) -> Iterator[tuple[Tensor, ImageBatch]]:
    """Logits in float32 [batch, classes] on the device, with the batch they belong to.

    The model is put into eval mode and back. The caller's code runs in neither inference mode nor autocast. A CPU
    computes `num_lanes` batches at a time, one on each core; None: as many as torch has threads. A single batch is
    divided among torch's threads instead, and so is every batch of a model that `uses_all_cores`.
    """

    def answer(batch: ImageBatch) -> Tensor:
        with torch.inference_mode(), autocast(device, dtype):
            images = normalize(batch.images.to(device, non_blocking=True))
            return model(images).float()

    iterator = iter(batches)
    first = list(itertools.islice(iterator, 2))
    if device.type != "cpu" or len(first) < 2 or getattr(model, "uses_all_cores", False):
        num_lanes = 1
    was_training = model.training
    model.eval()
    done: deque[ImageBatch] = deque()
    try:
        with Lanes(torch.get_num_threads() if num_lanes is None else num_lanes) as lanes:
            for logits in lanes.map(answer, _noting(itertools.chain(first, iterator), done)):
                # One made in inference mode could not be changed or learnt from outside.
                yield logits.clone(), done.popleft()
    finally:
        model.train(was_training)


def _noting(batches: Iterable[ImageBatch], done: deque[ImageBatch]) -> Iterator[ImageBatch]:
    """The batches as they come, each of them appended to `done`."""
    for batch in batches:
        done.append(batch)
        yield batch
