"""Residual structure: the equations of CaiT and Three things by hand, on tiny tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from shrunk import images_for, randomize, small_model
from torch import nn

import vitrail
from vitrail.layers.mlp import FeedForward
from vitrail.layers.residual import (
    Branch,
    ConstantScaling,
    Gating,
    LayerScale,
    PostNorm,
    Residual,
    ScalarScale,
)
from vitrail.layers.sample_draws import give_draws


class Times(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def branch(factor: float, scale: nn.Module | None = None) -> Branch:
    return Branch(norm=nn.Identity(), mix=Times(factor), scale=scale)


X = torch.tensor([[1.0, -2.0]])


def test_parallel_branches_read_the_same_input() -> None:
    """Three things eq. 2: x + f(x) + g(x), not x + f(x) + g(x + f(x))."""
    assert torch.equal(Residual([branch(2.0), branch(3.0)])(X), 6.0 * X)


def test_layer_scale_weighs_each_channel() -> None:
    scale = LayerScale(2, value=0.1)
    with torch.no_grad():
        scale.weight.copy_(torch.tensor([0.5, 2.0]))
    assert torch.allclose(Residual([branch(1.0, scale)])(X), X + torch.tensor([[0.5, -4.0]]))


def test_scalar_weights_start_where_they_are_told() -> None:
    assert torch.equal(Residual([branch(5.0, ScalarScale(value=0.0))])(X), X)  # ReZero
    assert torch.equal(Residual([branch(5.0, ScalarScale(value=1.0))])(X), 6.0 * X)  # Fixup


def test_joins_of_the_supplement() -> None:
    assert torch.allclose(Residual([branch(3.0)], join=ConstantScaling())(X), 2.0 * X)
    norm = nn.LayerNorm(2)
    assert torch.allclose(Residual([branch(3.0)], join=PostNorm(norm))(X), norm(4.0 * X))
    for exclusive, of_branch in ((True, 0.25), (False, 1.0)):
        gating = Gating(2, exclusive=exclusive)
        with torch.no_grad():
            gating.gate.weight.zero_()
            gating.gate.bias.fill_(-torch.log(torch.tensor(3.0)))  # the gate is 1/4
        expected = 0.75 * X + of_branch * 3.0 * X
        assert torch.allclose(Residual([branch(3.0)], join=gating)(X), expected)


def test_gates_start_nearly_closed() -> None:
    model = small_model("cait_s24", residual="exclusive_gating", layer_scale=None)
    assert all(module.gate.bias.eq(-6.0).all() for module in model.modules() if isinstance(module, Gating))


def test_uniform_init_lies_between_zero_and_twice_the_value() -> None:
    weight = LayerScale(10_000, value=0.1, init="uniform").weight
    assert weight.min() >= 0.0
    assert weight.max() <= 0.2
    assert weight.mean().item() == pytest.approx(0.1, abs=0.005)


def test_a_config_can_ask_for_frozen_layer_scales() -> None:
    model = small_model("cait_s24", layer_scale_frozen=True)
    scales = [module.weight for module in model.modules() if isinstance(module, LayerScale)]
    assert scales
    assert not any(weight.requires_grad for weight in scales)


def test_fixup_starts_every_branch_at_zero_and_shrinks_the_rest() -> None:
    torch.manual_seed(0)
    model = small_model("deit_small", residual="fixup", dim=96, depth=8)
    for block in model.blocks:
        assert block.communication.branches[0].mix.proj.weight.abs().max() == 0
        assert block.feed_forward.branches[0].mix.contract.weight.abs().max() == 0
        shrunk = (2 / 96) ** 0.5 * 16**-0.5  # He's, by L^(-1/2)
        assert block.feed_forward.branches[0].mix.expand.weight.std().item() == pytest.approx(shrunk, rel=0.05)
        queries, _, values = block.communication.branches[0].mix.qkv.weight.split(96)
        assert values.std().item() == pytest.approx(shrunk, rel=0.05)
        assert queries.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("name", ["deit_small", "cait_s24"])
@pytest.mark.parametrize("distilled", [False, True])
def test_fixup_starts_the_classifier_at_zero(name: str, distilled: bool) -> None:
    model = small_model(name, residual="fixup", layer_scale=None, distilled=distilled)
    heads = list(model.head.parameters())
    assert len(heads) == 2 * (1 + distilled)
    assert all(parameter.abs().max() == 0 for parameter in heads)


def test_scalar_weights_leave_the_class_stage_its_layer_scale() -> None:
    model = small_model("cait_s24", residual="scalar", layer_scale=0.3)
    scaled = [name for name, module in model.named_modules() if isinstance(module, LayerScale)]
    assert len(scaled) == 4
    assert all(name.startswith("class_stage.") for name in scaled)


def test_t_fixup_scales_values_outputs_and_mlp() -> None:
    torch.manual_seed(0)
    model = small_model("deit_small", residual="t_fixup", dim=96, depth=16)
    shrink = 0.67 * 16**-0.25
    attention = model.blocks[0].communication.branches[0].mix
    queries, _, values = attention.qkv.weight.split(96)
    xavier = (2 / (96 + 96)) ** 0.5
    assert queries.std().item() == pytest.approx(xavier, rel=0.05)
    assert values.std().item() == pytest.approx(xavier * shrink, rel=0.05)
    assert attention.proj.weight.std().item() == pytest.approx(xavier * shrink, rel=0.05)
    expand = model.blocks[0].feed_forward.branches[0].mix.expand.weight
    assert expand.std().item() == pytest.approx((2 / (96 + 384)) ** 0.5 * shrink, rel=0.05)


STYLES: list[dict[str, Any]] = [
    {"residual": "rezero"},
    {"residual": "fixup"},
    {"residual": "t_fixup"},
    {"residual": "scalar", "layer_scale": 0.1},
]


@pytest.mark.parametrize("settings", STYLES, ids=lambda settings: settings["residual"])
def test_branches_without_a_norm_read_their_input_as_it_is(settings: dict[str, Any]) -> None:
    """CaiT eq. 3 by hand: x + a f(x), where Fixup adds its scalar bias first."""
    model = randomize(small_model("deit_small", residual_norm=False, **settings)).eval()
    assert not [module for module in model.blocks.modules() if isinstance(module, nn.LayerNorm)]
    branch = model.blocks[0].communication.branches[0]
    x = torch.randn(2, 5, 48)
    shift = branch.norm.bias if settings["residual"] == "fixup" else 0.0
    expected = x + branch.scale.weight * branch.mix(x + shift)
    torch.testing.assert_close(model.blocks[0].communication(x), expected)


@pytest.mark.parametrize("residual_norm", [True, False])
@pytest.mark.parametrize("style", ["rezero", "fixup"])
def test_rezero_and_fixup_start_as_the_identity_and_learn(style: str, residual_norm: bool) -> None:
    torch.manual_seed(0)
    model = small_model("deit_small", residual=style, residual_norm=residual_norm, drop_path=0.0)
    x = torch.randn(2, 5, 48)
    for block in model.blocks:
        assert torch.equal(block(x), x)
    model.blocks[0](x).square().sum().backward()
    branch = model.blocks[0].feed_forward.branches[0]
    learnt = branch.scale.weight if style == "rezero" else branch.mix.contract.weight
    assert learnt.grad.abs().max() > 0
    with torch.no_grad():
        learnt.sub_(0.01 * learnt.grad)
    model.zero_grad()
    model.blocks[0](x).square().sum().backward()
    assert branch.mix.expand.weight.grad.abs().max() > 0


def test_branches_without_a_norm_are_saved_and_told_from_others(tmp_path: Path) -> None:
    model = randomize(small_model("deit_small", residual="rezero", residual_norm=False)).eval()
    vitrail.save_model(model, tmp_path / "model")
    images = images_for(model)
    with torch.inference_mode():
        assert torch.equal(vitrail.load_model(tmp_path / "model")(images), model(images))
    with pytest.raises(ValueError, match="layer norms and the weights have none: create it with residual_norm=False"):
        vitrail.load_weights(small_model("deit_small", residual="rezero"), model.state_dict())


@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24", "resmlp_s12", "patchconvnet_s60"])
def test_what_is_computed_without_dropped_samples_is_what_all_of_them_give(name: str) -> None:
    model = randomize(small_model(name, drop_path=0.5)).train().double()
    draws, images = give_draws(model), images_for(model, 6).double()
    branches = [part for part in model.modules() if isinstance(part, Branch)]
    gradients = []
    for is_by_row in (True, False):
        for part in branches:
            part.is_by_row = is_by_row
        draws.begin(3, first=0, num_samples=len(images))
        model.zero_grad()
        outputs = model(images)
        outputs.square().sum().backward()
        gradients.append([outputs, *(value.grad for value in model.parameters())])
    for some, all_rows in zip(*gradients, strict=True):
        assert torch.allclose(some, all_rows, rtol=1e-9, atol=1e-9)


def test_dropped_samples_are_not_computed_unless_all_are() -> None:
    part = Branch(norm=nn.LayerNorm(4), mix=FeedForward(4, hidden_dim=8), drop_path=0.5)
    draws = give_draws(part)
    num_seen: list[int] = []
    part.mix.register_forward_hook(lambda _module, inputs, _output: num_seen.append(len(inputs[0])))
    for key in range(40):
        draws.begin(key, first=0, num_samples=3)
        part.zero_grad()
        update = part(torch.randn(3, 2, 4))
        update.sum().backward()
        num_kept = int(update.flatten(1).any(dim=1).sum())
        assert num_seen.pop() == (num_kept or 3)
        # Zero, not none: an optimizer that decays weights would pass over those without a gradient.
        assert all(value.grad is not None for value in part.parameters())
    part.eval()(torch.randn(3, 2, 4))
    assert num_seen.pop() == 3


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.LayerNorm(4)])
def test_branches_that_mix_samples_or_draw_themselves_compute_all(norm: nn.Module) -> None:
    dropout = 0.0 if isinstance(norm, nn.BatchNorm1d) else 0.1
    part = Branch(norm=norm, mix=FeedForward(4, hidden_dim=8, dropout=dropout), drop_path=0.5)
    num_seen: list[int] = []
    part.mix.register_forward_hook(lambda _module, inputs, _output: num_seen.append(len(inputs[0])))
    part(torch.randn(64, 2, 4))
    assert num_seen == [64]
