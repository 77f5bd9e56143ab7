"""Training anew with the LayerScale weights that another training found."""

from pathlib import Path

import pytest
import torch
from tiny_runs import run_in, tiny_recipe

import vitrail
from vitrail.models.layer_scales import layer_scales

SHORT = ("epochs=1", "regularisation.ema=null", "model.settings.layer_scale=0.1")


def test_layer_scale_of_another_run_stays_and_the_rest_is_learnt_anew(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    run_in(before, *SHORT, "lr=1e-2")
    run_in(after, *SHORT, f"model.layer_scale_of={before}")
    first, second = (vitrail.load_trained(folder).model for folder in (before, after))
    found, kept = layer_scales(first), layer_scales(second)
    assert found.keys() == kept.keys()
    assert all(torch.equal(kept[name], found[name]) for name in found)
    assert not all(bool((weight == 0.1).all()) for weight in found.values())
    assert not torch.equal(first.state_dict()["head.linear.weight"], second.state_dict()["head.linear.weight"])


def test_it_is_no_second_start() -> None:
    with pytest.raises(ValueError, match="init and layer_scale_of are two ways to begin: leave one out"):
        tiny_recipe("init=a", "model.layer_scale_of=b")
