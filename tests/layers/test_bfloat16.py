"""When a CPU computes in bfloat16."""

import pytest
import torch

from vitrail.layers.bfloat16 import has_bfloat16_tiles, has_native_bfloat16


@pytest.mark.parametrize(
    ("parts", "limit", "is_native", "has_tiles"),
    [
        ((), None, False, False),
        (("avx512_bf16",), None, True, False),
        (("avx512_bf16", "amx_tile"), None, True, True),
        (("amx_tile",), None, True, True),
        (("avx512_bf16", "amx_tile"), "AVX512_CORE_AMX", True, True),
        (("avx512_bf16", "amx_tile"), "AVX512_CORE_BF16", True, False),
        (("avx512_bf16", "amx_tile"), "AVX512_CORE", False, False),
        (("avx512_bf16",), "avx2", False, False),
    ],
)
def test_bfloat16_is_used_where_the_cpu_has_it_and_its_library_may(
    parts: tuple[str, ...], limit: str | None, is_native: bool, has_tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{part}_supported", lambda part=part: part in parts, raising=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    if limit is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert has_native_bfloat16.__wrapped__() == is_native
    assert has_bfloat16_tiles.__wrapped__() == has_tiles
