"""Whether products in bfloat16 are worth while on this CPU."""

import os
from functools import cache

import torch

# Values of ONEDNN_MAX_CPU_ISA without instructions for bfloat16.
WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")


@cache
def has_native_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products and torch a library that uses them.

    The library, oneDNN, can be told to do without them (ONEDNN_MAX_CPU_ISA=AVX512_CORE); bfloat16 is emulated then.
    """
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # torch has no public ones
    is_supported = any(getattr(torch.cpu, probe, bool)() for probe in probes)
    is_used = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() not in WITHOUT_BFLOAT16
    return is_supported and is_used and torch.backends.mkldnn.is_available()
