"""Batches on their way to a GPU: copied on a stream of their own, while it computes the step before."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from vitrail.data.contract import Batch


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on a GPU; on other devices as they are.

    The host is ahead of a GPU, so that a copy on another stream overlaps with what is still computed. The memory of a
    batch is told which stream uses it: else it could be given away while that stream still reads it.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(stream):
            moved = batch.to(device, non_blocking=True)
        user = torch.cuda.current_stream(device)
        user.wait_stream(stream)
        for tensor in tensors_in(moved):
            tensor.record_stream(user)
        yield moved


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a batch that are on a GPU, in tuples of tuples or in the attributes of an object."""
    if isinstance(value, Tensor):
        if value.device.type == "cuda":
            yield value
        return
    inner = value if isinstance(value, (tuple, list)) else getattr(value, "__dict__", {}).values()
    for each in inner:
        yield from tensors_in(each)
