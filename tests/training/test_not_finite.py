"""A step that is not finite: the first tensor in the order of computation, and the files it was computed from."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run_in
from torch import nn

from vitrail.models.contract import Model
from vitrail.tasks.classify.task import Classify


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[Model], object]) -> None:
    """Change the model of a run once it is made."""
    make_model = Classify.make_model

    def make_spoilt(task: Classify, description: Mapping[str, Any]) -> Model:
        model = make_model(task, description)
        change(model)
        return model

    monkeypatch.setattr(Classify, "make_model", make_spoilt)


def error_of(folder: Path, *words: str) -> str:
    with pytest.raises(ValueError, match="first not finite") as error:
        run_in(folder, "model=deit_tiny", "blend.mixup=0", "blend.cutmix=0", *words)
    return str(error.value)


def named(module: nn.Module, name: str) -> Any:
    return dict(module.named_modules())[name]


def linears(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def test_the_layer_whose_output_went_bad_first_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def change(model: Model) -> None:
        names.append(linears(model)[2])

        def overflow(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            return output.clone().fill_(math.inf)

        named(model, names[0]).register_forward_hook(overflow)

    spoil(monkeypatch, change)
    message = error_of(tmp_path / "run")
    assert f"first not finite: the output of {names[0]};" in message


def test_weights_that_are_not_finite_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def change(model: Model) -> None:
        names.extend(linears(model)[1:3])
        with torch.no_grad():
            for name in reversed(names):
                named(model, name).weight[0, 0] = math.nan

    spoil(monkeypatch, change)
    message = error_of(tmp_path / "run")
    assert f"first not finite: the weights {names[0]}.weight;" in message


def test_weights_of_no_layer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def change(model: Model) -> None:
        name = next(name for name, _ in model.named_parameters() if "position" in name)
        names.append(name)
        with torch.no_grad():
            dict(model.named_parameters())[name].fill_(math.inf)

    spoil(monkeypatch, change)
    message = error_of(tmp_path / "run")
    assert f"first not finite: the weights {names[0]};" in message


@pytest.mark.parametrize("clip", ["null", "1"])
def test_of_gradients_the_one_nearest_the_output_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: str
) -> None:
    names: list[str] = []

    def change(model: Model) -> None:
        names.append(linears(model)[-3])

        def poison(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            output.register_hook(lambda gradient: gradient * math.nan)
            return output

        named(model, names[0]).register_forward_hook(poison)

    spoil(monkeypatch, change)
    message = error_of(tmp_path / "run", f"optimizer.clip={clip}")
    assert f"first not finite: the gradient of {names[0]}." in message


def test_samples_are_named_as_a_person_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(model: Model) -> None:
        def spoil_second_row(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            output = output.clone()
            output[1] = math.nan
            return output

        named(model, linears(model)[0]).register_forward_hook(spoil_second_row)

    spoil(monkeypatch, change)
    message = error_of(tmp_path / "run")
    samples = message.partition("; samples ")[2].partition(";")[0]
    assert samples.startswith("shapes")
    assert "," not in samples
    assert " more" not in samples
