"""The moving average against sums done by hand, its way into a model and back, and its state."""

import pytest
import torch
from shrunk import randomize, small_model
from torch import nn

from vitrail.training.loop.ema import MovingAverage


def filled(value: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A layer with all weights at `value`."""
    layer = nn.Linear(2, 2).to(dtype)
    return fill(layer, value)


@torch.no_grad()
def fill(module: nn.Module, value: float) -> nn.Module:
    for parameter in module.parameters():
        parameter.fill_(value)
    return module


def test_average_by_hand() -> None:
    model = filled(1.0)
    average = MovingAverage(model, decay=0.75)
    average.update(fill(model, 2.0))  # 0.75 * 1 + 0.25 * 2 = 1.25
    average.update(fill(model, 5.0))  # 0.75 * 1.25 + 0.25 * 5 = 2.1875
    assert all((value == 2.1875).all() for value in average.weights.values())
    assert average.num_updates == 2


def test_warmup_of_the_decay_by_hand() -> None:
    model = filled(1.0)
    average = MovingAverage(model, decay=0.15, warmup=True)
    average.update(fill(model, 2.0))  # decay 1 / 10: 0.1 * 1 + 0.9 * 2
    assert average.weights["bias"].tolist() == pytest.approx([1.9, 1.9])
    average.update(fill(model, 3.0))  # decay 0.15, below 2 / 11: 0.15 * 1.9 + 0.85 * 3
    assert average.weights["bias"].tolist() == pytest.approx([2.835, 2.835])


def test_average_of_sixteen_bit_weights_is_kept_in_float32() -> None:
    model = filled(1.0, torch.bfloat16)
    average = MovingAverage(model, decay=0.999)
    for _ in range(3):
        average.update(fill(model, 2.0))
    # A thousandth is lost in bfloat16, whose numbers at 1 are 1/128 apart.
    assert average.weights["weight"].dtype == torch.float32
    assert average.weights["bias"].tolist() == pytest.approx([2 - 0.999**3] * 2, abs=1e-6)
    average.copy_to(model)
    assert model.get_parameter("weight").dtype == torch.bfloat16


def test_buffers_are_copied() -> None:
    norm = nn.BatchNorm1d(2)
    average = MovingAverage(norm, decay=0.9)
    norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    average.update(norm)
    assert torch.equal(average.buffers["running_mean"], norm.get_buffer("running_mean"))
    assert average.buffers["num_batches_tracked"].item() == 1


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "cait_xxs24", "resmlp_s12", "patchconvnet_s20"])
def test_evaluating_the_average_leaves_the_model_as_it_was(name: str) -> None:
    model = randomize(small_model(name), seed=0)
    average = MovingAverage(model, decay=0.5)
    average.update(randomize(model, seed=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with average.applied_to(model):
        assert all(torch.equal(value, average.weights[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_model_comes_back_after_an_error_too() -> None:
    model = filled(1.0)
    average = MovingAverage(model, decay=0.5)
    fill(model, 3.0)

    def evaluate() -> None:
        with average.applied_to(model):
            assert (model.get_parameter("weight") == 1.0).all()
            raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        evaluate()
    assert (model.get_parameter("weight") == 3.0).all()


def test_the_average_holds_no_part_of_the_model() -> None:
    model = filled(1.0)
    average = MovingAverage(model, decay=0.5)
    fill(model, 9.0)
    assert (average.weights["weight"] == 1.0).all()
    assert not any(value.requires_grad for value in average.weights.values())


def test_a_restored_average_goes_on_bit_by_bit() -> None:
    model = randomize(small_model("patchconvnet_s20", norm="batch"), seed=0)
    straight = MovingAverage(model, decay=0.99, warmup=True)
    straight.update(randomize(model, seed=1))
    resumed = MovingAverage(randomize(model, seed=2), decay=0.99, warmup=True)
    resumed.load_state_dict(straight.state_dict())
    for average in (straight, resumed):
        average.update(randomize(model, seed=3))
    assert resumed.num_updates == straight.num_updates == 2
    assert all(torch.equal(straight.weights[name], resumed.weights[name]) for name in straight.weights)
    assert all(torch.equal(straight.buffers[name], resumed.buffers[name]) for name in straight.buffers)


def test_averages_of_another_model_are_refused_and_change_nothing() -> None:
    average = MovingAverage(filled(1.0), decay=0.5)
    for other, message in (
        (nn.Linear(2, 3), r"weight is \[3, 2\] in the checkpoint and \[2, 2\] here"),
        (nn.Linear(2, 2, bias=False), r"bias is none in the checkpoint and \[2\] here"),
    ):
        with pytest.raises(ValueError, match=message):
            average.load_state_dict(MovingAverage(other, decay=0.5).state_dict())
    assert (average.weights["weight"] == 1.0).all()


def test_wrong_decay_is_told() -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 1\), e.g. 0.9999, not 1.0"):
        MovingAverage(filled(0.0), decay=1.0)
