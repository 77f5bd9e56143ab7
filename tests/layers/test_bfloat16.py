"""When a CPU computes in bfloat16."""

import pytest
import torch

from vitrail.layers.bfloat16 import has_native_bfloat16

_PROBES = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")


@pytest.mark.parametrize("probe", _PROBES)
@pytest.mark.parametrize(
    ("limit", "is_native"), [(None, True), ("AVX512_CORE_AMX", True), ("AVX512_CORE", False), ("avx2", False)]
)
def test_bfloat16_is_native_where_the_cpu_has_it_and_its_library_may_use_it(
    probe: str, limit: str | None, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _PROBES:
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == probe, raising=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    if limit is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert has_native_bfloat16.__wrapped__() == is_native


def test_a_cpu_without_instructions_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _PROBES:
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert not has_native_bfloat16.__wrapped__()
