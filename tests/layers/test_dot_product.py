"""Attention in bfloat16 on a CPU: torch's own in float32, rounded, where that is the faster one."""

import pytest
import torch
from torch.nn import functional

from vitrail.layers import dot_product
from vitrail.layers.dot_product import dot_product_attention


def make_tokens(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(2, 3, length, 8, generator=generator) for _ in range(3))
    return [each.bfloat16().requires_grad_() for each in made]


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("is_autocast", [False, True])
def test_bfloat16_is_float32_rounded_where_there_are_no_matrix_units(
    is_autocast: bool, is_masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dot_product, "has_bfloat16_tiles", lambda: False)
    tokens = make_tokens(20)
    mask = torch.zeros(2, 1, 1, 20, dtype=torch.bfloat16) if is_masked else None
    if mask is not None:
        mask[1, ..., 13:] = -torch.inf
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        found = dot_product_attention(*tokens, mask=mask)
    assert found.dtype == torch.bfloat16
    wide = [each.detach().float().requires_grad_() for each in tokens]
    query, key, value = wide
    wide_mask = None if mask is None else mask.float()
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=wide_mask)
    assert torch.equal(found, expected.bfloat16())
    found.sum().backward()
    expected.bfloat16().sum().backward()
    for narrow, other in zip(tokens, wide, strict=True):
        assert narrow.grad is not None
        assert other.grad is not None
        assert torch.equal(narrow.grad, other.grad.bfloat16())


@pytest.mark.parametrize(("length", "has_tiles"), [(20, True), (600, False)])
def test_torch_decides_with_matrix_units_and_for_many_keys(
    length: int, has_tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dot_product, "has_bfloat16_tiles", lambda: has_tiles)
    query, key, value = make_tokens(length)
    expected = functional.scaled_dot_product_attention(query, key, value)
    assert torch.equal(dot_product_attention(query, key, value), expected)
