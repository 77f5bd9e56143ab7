"""A trunk with a token or a decoder for masked patches."""

import copy

import pytest
import torch
from shrunk import images_for, small_model

from vitrail.heads.masked import DecoderSettings, MaskedModel, at_masked, places_by_mask

MASKS = torch.zeros(2, 4, 4, dtype=torch.bool)
MASKS[0, 0, :3] = MASKS[1, 2, 1:] = True


def make(name: str = "cait_xxs24", *, decoder: bool = False) -> MaskedModel:
    torch.manual_seed(0)
    trunk = small_model(name, num_classes=0)
    settings = DecoderSettings(dim=16, depth=1, num_heads=2) if decoder else None
    return MaskedModel(trunk, grid=(4, 4), num_masked=3, num_outputs=5, decoder=settings)


def test_outputs_and_what_is_wanted_are_in_the_same_order() -> None:
    values = torch.arange(16).expand(2, -1)
    assert at_masked(values, MASKS, num_masked=3).tolist() == [[0, 1, 2], [9, 10, 11]]
    assert places_by_mask(MASKS)[1].tolist() == [*range(9), *range(12, 16), 9, 10, 11]
    wide = torch.stack([values, -values], dim=2)
    assert at_masked(wide, MASKS, num_masked=3)[1].tolist() == [[9, -9], [10, -10], [11, -11]]


@pytest.mark.parametrize("decoder", [False, True])
def test_every_parameter_that_learns_gets_a_gradient_and_none_is_told_what_is_masked(decoder: bool) -> None:
    model = make(decoder=decoder).train()
    images = images_for(model.trunk)
    outputs = model(images, MASKS)
    assert outputs.shape == (2, 3, 5)
    outputs.square().sum().backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == learning
    assert not any(name.startswith("trunk.class_stage") for name in learning)
    assert "trunk.blocks.0.communication.branches.0.mix.qkv.weight" in learning
    side = 16
    changed = images.clone()
    changed[0, :, :side, : 3 * side] = 7.0
    torch.testing.assert_close(model(changed, MASKS), outputs)
    changed[0, :, :side, 3 * side :] = 7.0
    assert not torch.allclose(model(changed, MASKS), outputs)


def test_the_decoder_knows_where_each_patch_was() -> None:
    """Two masked places get different answers, though their tokens are the same."""
    model = make(decoder=True).eval()
    outputs = model(images_for(model.trunk), MASKS)
    assert (outputs[0, 0] - outputs[0, 1]).abs().max() > 1e-4
    assert model.decoder is not None
    shuffled = model.decoder(torch.randn(1, 13, 48), places_by_mask(MASKS)[:1])
    assert shuffled.shape == (1, 3, 16)


def test_the_trunk_is_what_is_saved_and_all_else_is_the_head() -> None:
    model = make(decoder=True)
    assert model.for_inference() is model.trunk
    assert {"head.weight", "decoder.token", "decoder.embed.weight"} <= model.parts()["head"]
    assert "decoder.token" in model.undecayed()
    assert "token" in make().undecayed()
    layers = make().parameter_layers()
    assert layers["token"] == layers["head.weight"] == max(layers.values())
    torch.testing.assert_close(
        copy.deepcopy(model).eval()(images_for(model.trunk)), model.eval()(images_for(model.trunk))
    )
