"""The cross-entropy of pixels in strips: the loss and the gradient of the whole, and of parts of a batch."""

import pytest
import torch
from torch.nn import functional

from vitrail.layers import pixel_loss
from vitrail.layers.pixel_loss import upsampled_cross_entropy


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0])], ids=["equal", "weighted"])
@pytest.mark.parametrize("size", [(24, 40), (23, 37), (6, 10)])
def test_strips_are_the_loss_of_all_pixels(
    size: tuple[int, int], weights: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_loss, "_NUMBERS", {"cpu": 5 * size[1] * 4})  # four rows at a time
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 6, 10, requires_grad=True)
    masks = torch.randint(5, (3, *size), dtype=torch.uint8)
    masks[0, :, ::3] = 255
    wide = functional.interpolate(logits, size=size, mode="bilinear", align_corners=False)
    wanted = functional.cross_entropy(wide, masks.long(), weight=weights, ignore_index=255, reduction="sum")
    wanted = wanted / masks.numel()
    found = upsampled_cross_entropy(logits, masks, weights=weights)
    torch.testing.assert_close(found, wanted)
    [slope], [expected] = (torch.autograd.grad(3.0 * cost, [logits]) for cost in (found, wanted))
    torch.testing.assert_close(slope, expected)


def test_parts_of_a_batch_cost_what_the_whole_does() -> None:
    logits, masks = torch.randn(4, 3, 4, 4), torch.randint(3, (4, 8, 8), dtype=torch.uint8)
    masks[0] = 255  # an image without any label
    masks[1, :6] = 255
    parts = [upsampled_cross_entropy(*part) for part in zip(logits.split(2), masks.split(2), strict=True)]
    torch.testing.assert_close(torch.stack(parts).mean(), upsampled_cross_entropy(logits, masks))
