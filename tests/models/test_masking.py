"""Masking between stem and blocks: every family, and which stems commute with it (Three things, section 5)."""

import pytest
import torch
from shrunk import images_for, randomize, small_model
from torch import Tensor

import vitrail
from vitrail.models.contract import Model

FAMILIES = ("deit_tiny_distilled", "deit3_small", "cait_xxs24", "resmlp_s12", "patchconvnet_s20")
INDEPENDENT = ("linear", "linear_bn", "linear_gelu", "linear_bn_gelu", "hmlp_bn", "hmlp_ln")
CONVOLUTIONS = ("conv", "conv_bn", "conv_ln")


def mask_for(model: Model, images: Tensor) -> Tensor:
    grid = model.patch_grid(*images.shape[-2:])
    assert grid is not None
    masks = torch.zeros(len(images), *grid, dtype=torch.bool)
    masks[:, 1, 1:3] = masks[0, 2, 0] = True
    return masks


def without_masked(images: Tensor, masks: Tensor) -> Tensor:
    """Images whose masked patches are grey before any layer sees them."""
    side = images.shape[-1] // masks.shape[-1]
    shown = masks.unsqueeze(1).repeat_interleave(side, dim=2).repeat_interleave(side, dim=3)
    return torch.where(shown, 0.0, images)


@pytest.mark.parametrize("stem", [*INDEPENDENT, *CONVOLUTIONS])
@torch.no_grad()
def test_masking_before_or_after_the_stem_is_the_same_unless_it_convolves(stem: str) -> None:
    model = randomize(small_model("vit_b12", stem=stem)).eval()
    images, token = images_for(model), torch.randn(48, generator=torch.Generator().manual_seed(1))
    masks = mask_for(model, images)
    after = model.masked_patches(images, masks=masks, token=token)
    before = model.masked_patches(without_masked(images, masks), masks=masks, token=token)
    assert torch.allclose(before, after, atol=1e-5) == (stem in INDEPENDENT)


@torch.no_grad()
def test_in_training_the_hmlp_stem_differs_by_the_statistics_of_its_batch_norm_alone() -> None:
    """They are taken over all patches, masked ones too; in evaluation, and with layer norm, these leave nothing."""
    for stem, is_same in (("hmlp_bn", False), ("hmlp_ln", True)):
        model = randomize(small_model("vit_b12", stem=stem, drop_path=0.0)).train()
        images = images_for(model)
        masks, token = mask_for(model, images), torch.zeros(48)
        after, before = (
            model.masked_patches(given, masks=masks, token=token) for given in (images, without_masked(images, masks))
        )
        assert torch.allclose(before, after, atol=1e-5) == is_same


@pytest.mark.parametrize("name", FAMILIES)
def test_a_token_takes_the_place_of_masked_patches(name: str) -> None:
    model = randomize(small_model(name)).eval()
    images, token = images_for(model), torch.zeros(48, requires_grad=True)
    masks = mask_for(model, images)
    nothing = torch.zeros_like(masks)
    torch.testing.assert_close(
        model.masked_patches(images, masks=nothing, token=token), model.features(images).patches, rtol=1e-5, atol=1e-5
    )
    found = model.masked_patches(images, masks=masks, token=token)
    [gradient] = torch.autograd.grad(found.square().sum(), token)
    assert gradient.abs().min() > 0
    everything = model.masked_patches(images, masks=~nothing, token=token)
    torch.testing.assert_close(everything[0], everything[1])  # nothing of the images is left


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "cait_xxs24"])
@torch.no_grad()
def test_patches_that_are_left_out_have_no_part_in_the_others(name: str) -> None:
    model = randomize(small_model(name)).eval()
    images = images_for(model)
    count = 16
    in_order = torch.arange(count).expand(2, -1)
    whole = model.visible_patches(images, kept=in_order)
    torch.testing.assert_close(whole, model.features(images).patches.flatten(2).transpose(1, 2), rtol=1e-5, atol=1e-5)
    masks = mask_for(model, images)[1:].expand(2, -1, -1)
    kept = torch.nonzero(~masks[0].flatten()).T.expand(2, -1)
    some = model.visible_patches(images, kept=kept)
    torch.testing.assert_close(some, model.visible_patches(without_masked(images, masks), kept=kept))
    torch.testing.assert_close(some.flip(1), model.visible_patches(images, kept=kept.flip(1)), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(some, whole.gather(1, kept.unsqueeze(2).expand(-1, -1, 48)), atol=1e-3)


def test_who_can_leave_patches_out_says_so() -> None:
    can = {name for name in FAMILIES if small_model(name).takes_any_patches}
    assert can == {"deit_tiny_distilled", "deit3_small", "cait_xxs24"}


@torch.no_grad()
def test_a_transformer_of_timm_is_masked_behind_its_patch_embedding() -> None:
    model = vitrail.create_model("timm/vit_tiny_patch16_224", image_size=32, num_classes=0, options={"depth": 1}).eval()
    assert model.stem_dim == 192
    images = torch.randn(2, 3, 32, 32)
    masks = torch.tensor([[[True, False], [False, False]]] * 2)
    found = model.masked_patches(images, masks=masks, token=torch.zeros(192))
    assert found.shape == (2, 192, 2, 2)
    other = without_masked(images, masks)
    torch.testing.assert_close(model.masked_patches(other, masks=masks, token=torch.zeros(192)), found)
    assert not torch.allclose(model.features(other).patches, found, atol=1e-3)
    assert vitrail.create_model("timm/resnet18", num_classes=0).stem_dim is None
