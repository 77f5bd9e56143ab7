"""Self- and class-attention against their equations."""

import pytest
import torch

from vitrail.layers.attention import ClassAttention, SelfAttention


def softmax_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Eq. 3.1 for each head of [length, dim] matrices, written out."""
    outputs = []
    for q, k, v in zip(*(x.chunk(num_heads, dim=1) for x in (query, key, value)), strict=True):
        outputs.append(torch.softmax(q @ k.T / q.shape[1] ** 0.5, dim=1) @ v)
    return torch.cat(outputs, dim=1)


def test_self_attention_is_the_equation() -> None:
    torch.manual_seed(0)
    layer = SelfAttention(12, num_heads=3)
    tokens = torch.randn(1, 5, 12)
    query, key, value = layer.qkv(tokens)[0].chunk(3, dim=1)
    expected = layer.proj(softmax_attention(query, key, value, 3))
    assert torch.allclose(layer(tokens)[0], expected, atol=1e-6)


def test_self_attention_with_a_context_is_the_first_rows_of_the_whole() -> None:
    torch.manual_seed(0)
    layer = SelfAttention(12, num_heads=3)
    tokens = torch.randn(2, 6, 12)
    assert torch.allclose(layer(tokens[:, :2], tokens[:, 2:]), layer(tokens)[:, :2], atol=1e-6)


@pytest.mark.parametrize("class_in_keys", [True, False])
def test_class_attention_is_the_equation(class_in_keys: bool) -> None:
    """CaiT eq. 5 to 9, with z = [class, patches] or the patches alone."""
    torch.manual_seed(0)
    layer = ClassAttention(12, num_heads=3, class_in_keys=class_in_keys)
    token, patches = torch.randn(1, 1, 12), torch.randn(1, 5, 12)
    seen = torch.cat([token, patches], dim=1)[0] if class_in_keys else patches[0]
    expected = layer.proj(softmax_attention(layer.query(token)[0], layer.key(seen), layer.value(seen), 3))
    assert torch.allclose(layer(token, patches)[0], expected, atol=1e-6)
