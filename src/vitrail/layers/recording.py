"""Whether a computation is done now, or written down for later."""

import torch


def is_recorded() -> bool:
    """Whether a compiler or an exporter looks on: it is given plain operations, which it joins by itself."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
