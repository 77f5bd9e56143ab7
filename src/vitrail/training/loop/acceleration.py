"""What makes a model faster on a GPU and changes rounding at most: memory formats, TF32, compiled blocks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitrail.settings.running import RunSettings
from vitrail.training.parallel.sharding import blocks_of

_BEFORE_BLOCKS = ("stem", "patch_embed")  # what cuts an image into patches, by its name


def is_convolutional(model: nn.Module) -> bool:
    """Whether a model convolves neighbouring pixels or patches beyond its stem."""
    return any(
        isinstance(part, nn.Conv2d) and max(part.kernel_size) > 1 and not set(name.split(".")) & set(_BEFORE_BLOCKS)
        for name, part in model.named_modules()
    )


def choose_memory_format(model: nn.Module, settings: RunSettings, device: torch.device) -> None:
    """Store convolutions with their channels last, where the recipe says so or, on a GPU, the model is convolutional.

    Images come from the loader in that format already.
    """
    wants = settings.channels_last
    if wants or (wants is None and device.type == "cuda" and is_convolutional(model)):
        model.to(memory_format=torch.channels_last)


def compile_blocks(model: nn.Module) -> None:
    """Compile each block in its place: blocks alike share one compilation, and names of weights stay."""
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError("run.compile=blocks needs a model with blocks: use run.compile=true")
    for block in blocks:
        block.compile()


@contextmanager
def float32_products(settings: RunSettings) -> Iterator[None]:
    """Let GPUs round the factors of float32 products and convolutions to TF32 inside the block, where that is asked."""
    if not settings.tf32:
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
