"""Training anew with fixed LayerScale weights."""

from pathlib import Path

import pytest
import torch
from shrunk import small_model

import vitrail
from vitrail.models.layer_scales import freeze_layer_scales, layer_scales


def test_frozen_layer_scales_are_those_of_another_training_and_stay(tmp_path: Path) -> None:
    trained = small_model("cait_s24", layer_scale=0.3, layer_scale_init="uniform")
    control = small_model("cait_s24", layer_scale=0.3)
    freeze_layer_scales(control, layer_scales(trained))
    vitrail.save_model(control, tmp_path)
    for model in (control, vitrail.load_model(tmp_path)):
        values = layer_scales(model)
        assert values.keys() == layer_scales(trained).keys()
        for name, weight in layer_scales(trained).items():
            assert torch.equal(values[name], weight)
            assert not model.get_parameter(f"{name}.weight").requires_grad
        assert model.get_parameter("blocks.0.feed_forward.branches.0.mix.expand.weight").requires_grad


def test_values_of_another_model_are_refused() -> None:
    values = layer_scales(small_model("cait_s24"))
    with pytest.raises(ValueError, match="use the same kind"):
        freeze_layer_scales(small_model("cait_s24", depth=3), values)
    with pytest.raises(ValueError, match="not in resmlp_s12"):
        freeze_layer_scales(small_model("resmlp_s12"), {})
