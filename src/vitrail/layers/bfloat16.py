"""Whether products in bfloat16 are worth while on this CPU."""

import os
from functools import cache

import torch

# Values of ONEDNN_MAX_CPU_ISA without instructions for bfloat16, and those without matrix units for it.
WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
WITHOUT_TILES = (*WITHOUT_BFLOAT16, "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512")


@cache
def has_native_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products and torch a library that uses them.

    The library, oneDNN, can be told to do without them (ONEDNN_MAX_CPU_ISA=AVX512_CORE); bfloat16 is emulated then.
    """
    is_there = _is_supported("avx512_bf16") or _is_supported("amx_tile")  # one probe is older than the other
    return is_there and _is_used(WITHOUT_BFLOAT16)


@cache
def has_bfloat16_tiles() -> bool:
    """Whether this CPU has matrix units (AMX) for bfloat16, many times as fast as its vectors, and torch uses them."""
    return _is_supported("amx_tile") and _is_used(WITHOUT_TILES)


def _is_supported(what: str) -> bool:
    probe = getattr(torch.cpu, f"_is_{what}_supported", bool)  # torch has no public ones
    return bool(probe())


def _is_used(limits: tuple[str, ...]) -> bool:
    is_limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in limits
    return torch.backends.mkldnn.is_available() and not is_limited
