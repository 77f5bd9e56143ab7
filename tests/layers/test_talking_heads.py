"""Every form of talking-heads attention equals its definition, with its gradients and without keeping the maps."""

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from vitrail.layers import talking_heads
from vitrail.layers.kept_memory import KeptMemory
from vitrail.layers.talking_heads import plan_tiles, prefers_fused, talking_heads_attention, working_dtype
from vitrail.layers.talking_heads_forms import (
    HeadMixing,
    KeptMaps,
    Tiling,
    attend_fused,
    attend_plain,
    attend_tiled,
    attend_whole,
    differentiate_tiled,
)

BATCH = 3
HEAD_DIM = 6
WEIGHT_NAMES = ("before_weight", "before_bias", "after_weight", "after_bias")


def define(query: Tensor, key: Tensor, value: Tensor, *weights: Tensor) -> Tensor:
    """The equations, one head at a time."""
    before_weight, before_bias, after_weight, after_bias = weights
    heads = range(query.shape[1])
    scores = [query[:, i] @ key[:, i].transpose(1, 2) / query.shape[-1] ** 0.5 for i in heads]
    mixed = [sum(before_weight[j, i] * scores[i] for i in heads) + before_bias[j] for j in heads]
    attention = [each.softmax(dim=-1) for each in mixed]
    mixed = [sum(after_weight[j, i] * attention[i] for i in heads) + after_bias[j] for j in heads]
    return torch.stack([mixed[j] @ value[:, j] for j in heads], dim=1)


def make_inputs(
    heads: int,
    length: int,
    *,
    batch: int = BATCH,
    num_keys: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = (length, num_keys or length, num_keys or length)
    tokens = [torch.randn(batch, heads, each, HEAD_DIM, generator=generator) for each in lengths]
    shapes = ((heads, heads), (heads,), (heads, heads), (heads,))
    return [each.to(dtype) for each in (*tokens, *(torch.randn(shape, generator=generator) for shape in shapes))]


def apply_form(form: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, *weights: Tensor) -> Tensor:
    return form(query, key=key, value=value, mixing=HeadMixing(*weights))


def apply(query: Tensor, key: Tensor, value: Tensor, *weights: Tensor) -> Tensor:
    return talking_heads_attention(query, key, value, **dict(zip(WEIGHT_NAMES, weights, strict=True)))


def with_gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    output = function(*leaves)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    (output * weight).sum().backward()
    gradients = [each.grad for each in leaves]
    assert all(each is not None for each in gradients)
    return output.detach(), [each for each in gradients if each is not None]


def attend_scaled(query: Tensor, *, mixing: HeadMixing, **tokens: Tensor) -> Tensor:
    """The form on whole maps, which takes the scale of the scores in the weights."""
    weight = mixing.before_weight * query.shape[-1] ** -0.5
    return attend_whole(query, mixing=replace(mixing, before_weight=weight), **tokens)


TILINGS = [
    Tiling(images=1, rows=1000, is_mixed_by_row=True),
    Tiling(images=1, rows=3, is_mixed_by_row=True),
    Tiling(images=1, rows=1000, is_mixed_by_row=False),
    Tiling(images=2, rows=1000, is_mixed_by_row=False),
    Tiling(images=1, rows=3, is_mixed_by_row=False),
]
FORMS: dict[str, Callable[..., Tensor]] = {"plain": attend_plain, "fused": attend_fused, "whole": attend_scaled} | {
    f"{each.images} images, {each.rows} rows, by row {each.is_mixed_by_row}": partial(attend_tiled, tiling=each)
    for each in TILINGS
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("length", [1, 7, 50])
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_every_form_equals_the_definition(form: Callable[..., Tensor], heads: int, length: int) -> None:
    inputs = make_inputs(heads, length)
    torch.testing.assert_close(apply_form(form, *inputs), define(*inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_takes_fewer_queries_than_keys(form: Callable[..., Tensor]) -> None:
    inputs = make_inputs(4, 5, num_keys=11)
    torch.testing.assert_close(apply_form(form, *inputs), define(*inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_is_close_in_bfloat16(form: Callable[..., Tensor]) -> None:
    inputs = make_inputs(4, 20, dtype=torch.bfloat16)
    expected = define(*(each.double() for each in inputs))
    output = apply_form(form, *inputs)
    assert output.dtype == torch.bfloat16
    assert (output.double() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("scale", [30.0, 3000.0])
def test_large_scores_do_not_overflow(scale: float) -> None:
    inputs = make_inputs(4, 50)
    inputs[0] = inputs[0] * scale
    expected = define(*(each.double() for each in inputs)).float()
    torch.testing.assert_close(apply(*inputs), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize(("heads", "length", "num_keys"), [(1, 7, 7), (4, 7, 7), (2, 1, 1), (8, 20, 20), (4, 5, 11)])
def test_tiled_gradients_equal_those_of_the_definition(tiling: Tiling, heads: int, length: int, num_keys: int) -> None:
    inputs = make_inputs(heads, length, num_keys=num_keys, dtype=torch.float64)
    _, expected = with_gradients(define, inputs)
    gradient = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).double()
    query, key, value, *weights = inputs
    actual = differentiate_tiled(
        gradient, query=query, key=key, value=value, mixing=HeadMixing(*weights), tiling=tiling
    )
    for name, one, other in zip(actual._fields, actual, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-9, rtol=1e-9), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "heads", "length"), [(3, 4, 7), (5, 4, 196), (2, 2, 700), (40, 2, 20)])
def test_keeping_the_maps_changes_no_bit(
    batch: int, heads: int, length: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(heads, length, batch=batch, dtype=dtype)
    found = []
    for limit in (0, 1 << 30):
        memory = KeptMemory(limit)
        monkeypatch.setattr(talking_heads, "MEMORY", memory)
        found.append(with_gradients(apply, inputs))
        assert (memory.held > 0) is (limit > 0)
    (output, gradients), (kept_output, kept_gradients) = found
    assert torch.equal(output, kept_output)
    assert all(torch.equal(one, other) for one, other in zip(gradients, kept_gradients, strict=True))


def test_maps_are_kept_up_to_a_limit_and_their_memory_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, *weights = (each.requires_grad_() for each in make_inputs(4, 9))
    size = 4 * KeptMaps.count(query, key=key)
    memory = KeptMemory(2 * size)
    monkeypatch.setattr(talking_heads, "MEMORY", memory)
    layers = [apply(query, key, value, *weights) for _ in range(3)]  # the third computes its maps once more
    assert memory.held == 2 * size
    first = torch.autograd.grad(layers[0].sum(), query, retain_graph=True)[0]
    for layer in layers:
        assert torch.equal(torch.autograd.grad(layer.sum(), query)[0], first)
    del layer, layers
    assert memory.take(size // 4, torch.float32) is not None
    assert memory.held == 2 * size
    assert memory.take(size // 2, torch.float32) is None  # one is in use, the other was given up
    assert memory.held == size


@pytest.mark.parametrize(("heads", "length"), [(1, 3), (2, 1), (2, 3)])
def test_gradients_pass_gradcheck(heads: int, length: int) -> None:
    inputs = [each.requires_grad_() for each in make_inputs(heads, length, batch=1, dtype=torch.float64)]
    assert torch.autograd.gradcheck(apply, inputs)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_bfloat16_gradients_are_close(tiling: Tiling, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU with matrix units for bfloat16, where the maps are kept in bfloat16."""
    monkeypatch.setattr(talking_heads, "has_bfloat16_tiles", lambda: True)
    monkeypatch.setattr(talking_heads, "plan_tiles", lambda query, *, key: tiling)
    inputs = make_inputs(8, 20, dtype=torch.bfloat16)
    _, actual = with_gradients(apply, inputs)
    _, expected = with_gradients(define, [each.double() for each in inputs])
    for name, one, other in zip(("query", "key", "value", *WEIGHT_NAMES), actual, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.double() - other).norm() <= 0.05 * other.norm() + 1e-6, name


@pytest.mark.parametrize(("heads", "length"), [(1, 30), (4, 30), (4, 140)])
def test_training_equals_the_definition(heads: int, length: int) -> None:
    inputs = make_inputs(heads, length)
    output, actual = with_gradients(apply, inputs)
    expected_output, expected = with_gradients(define, [each.double() for each in inputs])
    torch.testing.assert_close(output, expected_output.float(), atol=1e-5, rtol=1e-5)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other.float(), atol=2e-4, rtol=2e-4)


def test_the_bias_before_the_softmax_changes_nothing() -> None:
    inputs = make_inputs(4, 9)
    output, gradients = with_gradients(apply, inputs)
    assert torch.equal(gradients[4], torch.zeros(4))
    inputs[4] = inputs[4] + 5
    torch.testing.assert_close(apply(*inputs), output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "length"), [(1, 64), (4, 64), (4, 160)])
def test_no_map_is_kept_for_the_backward_pass(heads: int, length: int, dtype: torch.dtype) -> None:
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    inputs = [each.requires_grad_() for each in make_inputs(heads, length, dtype=dtype)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        apply(*inputs).sum().backward()
    assert saved
    assert max(each.numel() for each in saved) < BATCH * heads * length * length
    assert sum(each.numel() for each in saved) <= sum(each.numel() for each in inputs)


def test_only_some_inputs_may_need_gradients() -> None:
    inputs = make_inputs(4, 9)
    inputs[2].requires_grad_()
    apply(*inputs).sum().backward()
    assert inputs[2].grad is not None
    assert inputs[0].grad is None


@pytest.mark.parametrize(("heads", "length"), [(4, 10), (4, 140), (1, 10)])
def test_views_of_one_projection_are_taken_as_they_are(heads: int, length: int) -> None:
    *_, before_weight, before_bias, after_weight, after_bias = make_inputs(heads, length)
    packed = torch.randn(BATCH, length, 3, heads, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    weights = (before_weight, before_bias, after_weight, after_bias)

    def attend(packed: Tensor, function: Callable[..., Tensor]) -> Tensor:
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        return function(query, key, value, *weights)

    output, (gradient,) = with_gradients(partial(attend, function=apply), [packed])
    expected, (expected_gradient,) = with_gradients(partial(attend, function=define), [packed])
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("heads", "length"), [(1, 9), (4, 9), (4, 140)])
def test_joining_the_heads_copies_nothing(heads: int, length: int) -> None:
    output = apply(*make_inputs(heads, length))
    assert output.transpose(1, 2).flatten(2).data_ptr() == output.data_ptr()


def test_a_gradient_may_be_a_broadcast_number() -> None:
    inputs = [each.requires_grad_() for each in make_inputs(4, 9, dtype=torch.float64)]
    torch.testing.assert_close(
        torch.autograd.grad(apply(*inputs).sum(), inputs[:4]), torch.autograd.grad(define(*inputs).sum(), inputs[:4])
    )


def test_shapes_on_the_meta_device() -> None:
    inputs = [each.to("meta").requires_grad_() for each in make_inputs(4, 9)]
    output = apply(*inputs)
    assert output.shape == (BATCH, 4, 9, HEAD_DIM)
    output.sum().backward()
    assert inputs[0].grad is not None


def test_an_empty_batch_stays_empty() -> None:
    assert apply(*make_inputs(4, 9, batch=0)).shape == (0, 4, 9, HEAD_DIM)


@pytest.mark.parametrize("has_tiles", [False, True])
@pytest.mark.parametrize("heads", [4, 8])
def test_autocast_in_training(heads: int, has_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talking_heads, "has_bfloat16_tiles", lambda: has_tiles)
    query, key, value, *weights = make_inputs(heads, 20)
    tokens = [each.bfloat16() for each in (query, key, value)]

    def attend(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return apply(*inputs)

    output, gradients = with_gradients(attend, [*tokens, *weights])
    expected, expected_gradients = with_gradients(define, [each.double() for each in (*tokens, *weights)])
    assert output.dtype == torch.bfloat16
    assert [each.dtype for each in gradients] == [torch.bfloat16] * 3 + [torch.float32] * 4
    tolerance = 0.05 if has_tiles else 0.01
    assert (output - expected).norm() < tolerance * expected.norm()
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert (one - other).norm() <= tolerance * other.norm() + 1e-6


def test_a_backward_pass_inside_autocast_keeps_its_types() -> None:
    inputs = make_inputs(4, 20)
    _, expected = with_gradients(apply, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, actual = with_gradients(apply, inputs)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_without_matrix_units_are_computed_in_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talking_heads, "has_bfloat16_tiles", lambda: False)
    inputs = make_inputs(4, 20, dtype=dtype)
    assert working_dtype(inputs[0]) == torch.float32
    expected = define(*(each.float() for each in inputs)).to(dtype)
    torch.testing.assert_close(apply(*inputs), expected)


def test_the_fused_form_is_for_few_heads_in_low_precision() -> None:
    def is_fused(heads: int, dtype: torch.dtype, head_dim: int = 48) -> bool:
        return prefers_fused(torch.empty(1, heads, 196, head_dim, dtype=dtype, device="meta"))

    assert is_fused(1, torch.float32)
    assert not is_fused(2, torch.float32)
    assert is_fused(4, torch.bfloat16)
    assert not is_fused(8, torch.bfloat16)
    assert not is_fused(4, torch.bfloat16, head_dim=96)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "heads", "length"), [(16, 4, 196), (5, 4, 50), (64, 2, 10), (1, 16, 784), (2, 4, 2304), (1, 64, 30000)]
)
def test_tiles_stay_in_cache_and_cover_the_maps(batch: int, heads: int, length: int, dtype: torch.dtype) -> None:
    tokens = torch.empty(1, dtype=dtype).expand(batch, heads, length, HEAD_DIM)
    tiling = plan_tiles(tokens, key=tokens)
    tile_bytes = tiling.images * heads * tiling.rows * length * tokens.element_size()
    budget = talking_heads.CPU_TILE_BYTES * torch.get_num_threads()
    assert tile_bytes <= budget or (tiling.images, tiling.rows) == (1, 1)
    assert 1 <= tiling.images <= batch
    assert tiling.rows == length or tiling.images == 1
    assert not (tiling.is_mixed_by_row and tiling.images > 1)


def test_tracing_records_the_plain_form() -> None:
    inputs = make_inputs(4, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(apply, tuple(inputs), check_trace=False)
        torch.jit.save(traced, io.BytesIO())
    others = make_inputs(4, 12, batch=2, seed=3)
    torch.testing.assert_close(traced(*others), define(*others), atol=1e-5, rtol=1e-5)


def test_export_records_the_plain_form() -> None:
    class Attention(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return apply(*inputs)

    inputs = tuple(make_inputs(4, 9))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Attention(), inputs)
    torch.testing.assert_close(program.module()(*inputs), define(*inputs), atol=1e-5, rtol=1e-5)


def test_wrong_shapes_are_named() -> None:
    query, key, value, *weights = make_inputs(4, 9)
    with pytest.raises(ValueError, match="query, key and value must be"):
        apply(query, key[:, :2], value, *weights)
    with pytest.raises(ValueError, match=r"mixing weights for 4 heads must be \[4, 4\], not \[2, 4\]"):
        apply(query, key, value, weights[0][:2], *weights[1:])


def test_function_transforms_differentiate_it() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(3, 2, 4, 5, 6, dtype=torch.float64)
    weights = {"before_weight": torch.eye(4).double(), "after_weight": torch.randn(4, 4).double()}
    biases = {"before_bias": torch.randn(4).double(), "after_bias": torch.randn(4).double()}

    def loss(query: torch.Tensor) -> torch.Tensor:
        return talking_heads_attention(query, tokens[1], tokens[2], **weights, **biases).square().sum()

    query = tokens[0].clone().requires_grad_()
    loss(query).backward()
    assert query.grad is not None
    assert torch.allclose(torch.func.grad(loss)(tokens[0]), query.grad)
