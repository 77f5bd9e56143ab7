"""Answers of a model, batch by batch, on the device and in the precision that suit it."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from vitrail.data.blend import Normalize
from vitrail.data.contract import ImageBatch
from vitrail.layers.talking_heads import has_native_bfloat16

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
    """Compute products in that type; nothing to do for float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def predict(
    model: nn.Module,
    batches: Iterable[ImageBatch],
    *,
    normalize: Normalize,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[Tensor, ImageBatch]]:
    """Logits in float32 [batch, classes] on the device, with the batch they belong to.

    The model is put into eval mode and back. The caller's code runs in neither inference mode nor autocast.
    """
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            with torch.inference_mode(), autocast(device, dtype):
                images = normalize(batch.images.to(device, non_blocking=True))
                logits = model(images).float()
            yield logits.clone(), batch  # one made in inference mode could not be changed or learnt from outside
    finally:
        model.train(was_training)
