"""The network: causality, padding, submatrices of A, and decoding step by step."""

import pytest
import torch
from torch import Tensor

from vitrail.translation.network import Seq2Seq, Seq2SeqConfig
from vitrail.translation.position_layers import Padding, PositionLinear

MIXINGS = ["linear", "attention"]


def make_model(mixing: str, **changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    settings = {
        "dim": 16,
        "depth": 2,
        "mlp_dim": 32,
        "num_heads": 2,
        "max_length": 12,
        "layer_scale": 1.0,
        "positions": mixing == "attention",
        "norm": "layer",
        **changes,
    }
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=20, mixing=mixing, **settings))  # type: ignore[arg-type]
    for parameter in model.parameters():  # biases too
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def logits_of(model: Seq2Seq, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    padding = Padding.of(lengths, length=len(source))
    return model.answer(model.decode(target, model.encode(source, padding), padding))


@pytest.fixture(params=MIXINGS)
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return make_model(request.param)


@torch.no_grad()
def test_a_token_does_not_see_later_ones(model: Seq2Seq) -> None:
    source, target = torch.randint(4, 20, (5, 3)), torch.randint(4, 20, (7, 3))
    lengths = torch.tensor([5, 5, 5])
    before = logits_of(model, source, lengths, target)
    for place in range(1, 7):
        changed = target.clone()
        changed[place:] = (changed[place:] - 3) % 16 + 4
        after = logits_of(model, source, lengths, changed)
        torch.testing.assert_close(after[:place], before[:place], rtol=0, atol=1e-5)
        assert not torch.allclose(after[place], before[place], atol=1e-3)


@torch.no_grad()
def test_answers_do_not_depend_on_the_padding_of_the_batch(model: Seq2Seq) -> None:
    short, long = torch.randint(4, 20, (3, 1)), torch.randint(4, 20, (9, 1))
    target = torch.randint(4, 20, (4, 1))
    alone = logits_of(model, short, torch.tensor([3]), target)
    for filling in (0, 7):  # whatever stands where nothing is
        padded = torch.full((9, 1), filling)
        padded[:3] = short
        longer = torch.cat([target, torch.full((5, 1), filling)])
        batch = torch.cat([padded, long], dim=1), torch.tensor([3, 9]), longer.expand(-1, 2)
        together = logits_of(model, *batch)
        torch.testing.assert_close(together[:4, :1], alone, rtol=0, atol=1e-5)


def test_a_batch_uses_the_submatrix_of_its_length() -> None:
    for is_causal in (False, True):
        layer = PositionLinear(6, is_causal=is_causal)
        torch.nn.init.normal_(layer.bias)
        tokens = torch.randn(4, 2, 3)
        found = layer(tokens, Padding(None, None))
        for place in range(4):  # y_t = sum over s of A_ts x_s + b_t
            last = place + 1 if is_causal else 4
            wanted = sum(layer.weight[place, other] * tokens[other] for other in range(last)) + layer.bias[place]
            torch.testing.assert_close(found[place], wanted)
        found.sum().backward()
        assert layer.weight.grad is not None
        used = layer.weight.grad.ne(0)
        wanted_used = torch.zeros(6, 6, dtype=torch.bool)
        wanted_used[:4, :4] = torch.ones(4, 4).tril().bool() if is_causal else True
        assert torch.equal(used, wanted_used)


@torch.no_grad()
def test_decoding_step_by_step_equals_the_full_pass(model: Seq2Seq) -> None:
    source, lengths, target = torch.randint(4, 20, (6, 3)), torch.tensor([6, 2, 4]), torch.randint(4, 20, (12, 3))
    whole = logits_of(model, source, lengths, target)
    state = model.begin(source, lengths)
    steps = torch.stack([model.step(target[place], state) for place in range(12)])
    torch.testing.assert_close(steps, whole, rtol=0, atol=1e-5)


@torch.no_grad()
def test_rows_of_a_beam_follow_their_order_and_sentences_can_be_dropped(model: Seq2Seq) -> None:
    source, lengths = torch.randint(4, 20, (6, 3)), torch.tensor([6, 2, 4])
    target = torch.randint(4, 20, (3, 6))  # two rows for each sentence
    state = model.begin(source, lengths)
    model.step(target[0], state)
    model.step(target[1], state)
    kept, rows = torch.tensor([0, 2]), torch.tensor([1, 0, 5, 5])
    state.keep(kept, rows=rows)
    found = model.step(target[2, :4], state)
    said = torch.cat([target[:2, rows], target[2:, :4]])
    repeated = source[:, kept].repeat_interleave(2, dim=1), lengths[kept].repeat_interleave(2)
    torch.testing.assert_close(found, logits_of(model, *repeated, said)[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mixing", MIXINGS)
@torch.no_grad()
def test_decoding_with_caches_computes_a_fifth_at_length_64(mixing: str) -> None:
    """Counted in products, since no test measures time: benchmarks/translation.py does."""
    from torch.utils.flop_counter import FlopCounterMode

    model = make_model(mixing, max_length=64)
    source, lengths, target = torch.randint(4, 20, (64, 1)), torch.tensor([64]), torch.randint(4, 20, (64, 1))
    with FlopCounterMode(display=False) as cached:
        state = model.begin(source, lengths)
        for place in range(64):
            model.step(target[place], state)
    padding = Padding.of(lengths, length=64)
    with FlopCounterMode(display=False) as whole:
        encoded = model.encode(source, padding)
        for place in range(64):
            model.answer(model.decode(target[: place + 1], encoded, padding)[-1])
    assert 5 * cached.get_total_flops() < whole.get_total_flops()


def test_recomputing_blocks_changes_no_gradient() -> None:
    gradients = []
    for is_recomputing in (False, True):
        model = make_model("linear").train()
        if is_recomputing:
            model.recompute_blocks()
        source, target = torch.arange(4, 10).view(3, 2), torch.arange(4, 10).view(3, 2)
        model(source, torch.tensor([3, 2]), target, torch.arange(6)).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_parameters_are_those_of_the_settings() -> None:
    def count(mixing: str, depth: int) -> int:
        config = Seq2SeqConfig(vocabulary_size=32_000, mixing=mixing, depth=depth, norm="layer")
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in Seq2Seq(config).parameters())

    dim, length, depth = 512, 256, 6
    attention, ffn, norm = 4 * (dim * dim + dim), 2 * dim * 2048 + 2048 + dim, 2 * dim
    shared = 32_000 * dim + 2 * norm + depth * (attention + 2 * ffn + 5 * (norm + dim))  # LayerScale in every branch
    assert count("attention", depth) == shared + 2 * depth * attention
    assert count("linear", depth) == shared + 2 * depth * (length * length + length)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_heads": 3}, "num_heads 3 does not divide dim 512"),
        ({"mixing": "mlp"}, "mixing must be one of linear, attention"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"depth": 0}, "depth must be a whole number of at least 1"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Seq2SeqConfig(vocabulary_size=20, **settings)  # type: ignore[arg-type]
