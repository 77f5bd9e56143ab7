"""Mask R-CNN on a trunk: its size, what it says of images in any company, and whose its random choices are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shrunk import randomize
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.poolers import LevelMapper

from vitrail.heads.mask_rcnn import Detector, DetectorSettings
from vitrail.heads.per_image_rcnn import BalancedSampler
from vitrail.heads.roi_pooling import RoiPool
from vitrail.inference.folding import fold
from vitrail.layers.sample_draws import SampleDraws, give_draws
from vitrail.models.catalog import create_model
from vitrail.models.contract import Model
from vitrail.weights import load_model, save_model

SMALL = DetectorSettings(
    num_classes=3,
    channels=16,
    anchor_sizes=(8, 16, 32, 64, 96),
    box_dim=32,
    mask_dim=16,
    mask_depth=1,
    train_proposals=50,
    proposals=50,
    anchors_per_image=32,
    boxes_per_image=16,
    score_threshold=0.0,
)
TRUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("deit_tiny", {"dim": 24, "num_heads": 2, "depth": 4}),
    "cait": ("cait_xxs24", {"dim": 24, "num_heads": 2, "depth": 4}),
    "resmlp": ("resmlp_s12", {"dim": 24, "depth": 4}),
    "patchconvnet": ("patchconvnet_s20", {"dim": 32, "depth": 4}),
    "timm": ("timm/vit_tiny_patch16_224", {"options": {"embed_dim": 24, "num_heads": 2, "depth": 4}}),
    "stages": ("timm/resnet18", {}),
}


def trunk_of(family: str, **settings: object) -> Model:
    name, own = TRUNKS[family]
    return create_model(name, image_size=(64, 96), num_classes=0, **own, **settings)


def detector(family: str = "patchconvnet", **changes: Any) -> Detector:
    torch.manual_seed(0)
    settings = {"drop_path": 0.3} if family == "patchconvnet" else {}
    return Detector(trunk_of(family, **settings), DetectorSettings(**{**vars(SMALL), **changes}))


def batch(*sizes: tuple[int, int]) -> tuple[Tensor, Tensor, list[dict[str, Tensor]]]:
    """Noise padded to the largest size, with two objects in each image but the second, which has none."""
    generator = torch.Generator().manual_seed(1)
    images = torch.zeros(len(sizes), 3, *(max(side) for side in zip(*sizes, strict=True)))
    targets = []
    for row, (height, width) in enumerate(sizes):
        images[row, :, :height, :width] = torch.randn(3, height, width, generator=generator)
        boxes = torch.tensor([[3.0, 4, 30, 35], [20, 10, 50, 40]])[: 0 if row == 1 else 2]
        masks = (torch.rand(len(boxes), height, width, generator=generator) > 0.5).to(torch.uint8)
        targets.append({"boxes": boxes, "labels": torch.tensor([1, 3])[: len(boxes)], "masks": masks})
    return images, torch.tensor(sizes), targets


def costs(
    model: Detector, draws: SampleDraws, given: Any, rows: slice, *, num_rows: int
) -> tuple[Tensor, list[Tensor]]:
    """The total of some rows as a micro-batch, over all rows, and the gradients."""
    images, sizes, targets = given
    draws.begin(5, first=range(num_rows)[rows][0], num_samples=len(range(num_rows)[rows]))
    losses = model(images[rows], sizes[rows], targets[rows])
    total = torch.stack(list(losses.values())).sum() / num_rows
    gradients = torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad])
    return total.detach(), list(gradients)


# Thesis table 5.6. Counted: the trunk without its class stage and classifier, which have no part in it; two transposed
# convolutions to the finer levels; the FPN; torchvision's heads with the 91 outputs that ids of COCO make.
@pytest.mark.parametrize(("name", "millions"), [("patchconvnet_s60", "44.9"), ("patchconvnet_s120", "67.4")])
def test_parameters_are_the_printed_ones(name: str, millions: str) -> None:
    with torch.device("meta"):
        model = Detector(create_model(name, num_classes=0), DetectorSettings(num_classes=90, pyramid="chained"))
    stage = model.trunk.class_stage
    assert stage is not None
    assert not any(parameter.requires_grad for parameter in stage.parameters())
    count = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in stage.parameters())
    assert f"{count / 1e6:.1f}" == millions


@pytest.mark.parametrize("head", ["mask_rcnn", "faster_rcnn"])
@pytest.mark.parametrize("family", TRUNKS)
def test_every_family_learns_and_answers(family: str, head: str) -> None:
    model = detector(family, head=head)
    images, sizes, targets = batch((64, 96), (40, 90))
    losses = model.train()(images, sizes, targets)
    names = {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"}
    assert set(losses) == names | ({"loss_mask"} if head == "mask_rcnn" else set())
    assert all(loss.shape == (2,) and loss.isfinite().all() for loss in losses.values())
    torch.stack(list(losses.values())).sum().backward()
    learning = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert [name for name, gradient in learning.items() if gradient is None] == []
    with torch.no_grad():
        found = model.eval()(images, sizes)
    for (height, width), one in zip(sizes.tolist(), found, strict=True):
        assert 0 < len(one.boxes) <= 100
        assert one.boxes[:, 2].max() <= width
        assert one.boxes[:, 3].max() <= height
        assert set(one.labels.tolist()) <= {0, 1, 2}
        assert (one.masks is None) == (head == "faster_rcnn")


@pytest.mark.parametrize("patch_size", [4, 8, 16])
@pytest.mark.parametrize("pyramid", ["blocks", "chained", "simple"])
def test_levels_have_the_strides_that_boxes_are_read_by(pyramid: str, patch_size: int) -> None:
    trunk = create_model("patchconvnet_s20", dim=16, depth=4, patch_size=patch_size, image_size=64, num_classes=0)
    model = Detector(trunk, DetectorSettings(**{**vars(SMALL), "pyramid": pyramid}))
    assert model.pyramid.strides == (4.0, 8.0, 16.0, 32.0)
    maps = model.feature_maps(torch.zeros(1, 3, 64, 96))
    assert [tuple(level.shape[-2:]) for level in maps.values()] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]


def test_it_is_torchvisions_mask_rcnn() -> None:
    """With the same weights and one image, torchvision's own model says the same boxes, classes and masks."""
    model = detector().eval()

    class Backbone(nn.Module):
        out_channels = 16

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            return model.feature_maps(images)

    theirs = MaskRCNN(
        Backbone(),
        num_classes=None,
        min_size=64,
        max_size=96,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        rpn_anchor_generator=AnchorGenerator(tuple((s,) for s in SMALL.anchor_sizes), ((0.5, 1.0, 2.0),) * 5),
        rpn_head=model.rpn.head,
        rpn_pre_nms_top_n_test=50,
        rpn_post_nms_top_n_test=50,
        box_head=model.roi_heads.box_head,
        box_predictor=model.roi_heads.box_predictor,
        box_score_thresh=0.0,
        mask_head=model.roi_heads.mask_head,
        mask_predictor=model.roi_heads.mask_predictor,
    ).eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        [found], [wanted] = model(images), theirs([images[0]])
    torch.testing.assert_close(found.boxes, wanted["boxes"])
    torch.testing.assert_close(found.scores, wanted["scores"])
    assert torch.equal(found.labels + 1, wanted["labels"])
    pasted = paste_masks_in_image(found.masks[:, None], found.boxes, (64, 96))
    torch.testing.assert_close(pasted, wanted["masks"])


@pytest.mark.parametrize("row", [0, 1], ids=["objects", "no objects"])
def test_its_losses_are_torchvisions(row: int) -> None:
    """Of one image, with the weights carried over and every anchor and proposal chosen: losses and gradients."""
    model = detector("vit", anchors_per_image=4096, boxes_per_image=4096).train()
    model.trunk.eval()  # which drops nothing then

    class Backbone(nn.Module):
        out_channels = 16

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            with torch.no_grad():
                return model.feature_maps(images)

    theirs = MaskRCNN(
        Backbone(),
        num_classes=None,
        min_size=64,
        max_size=96,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        rpn_anchor_generator=AnchorGenerator(tuple((s,) for s in SMALL.anchor_sizes), ((0.5, 1.0, 2.0),) * 5),
        rpn_head=RPNHead(16, 3),
        rpn_pre_nms_top_n_train=50,
        rpn_post_nms_top_n_train=50,
        rpn_batch_size_per_image=4096,
        box_head=TwoMLPHead(16 * 7 * 7, 32),
        box_predictor=FastRCNNPredictor(32, 4),
        box_batch_size_per_image=4096,
        mask_head=MaskRCNNHeads(16, (16,), 1),
        mask_predictor=MaskRCNNPredictor(16, 16, 4),
    ).train()
    parts = ((model.rpn, theirs.rpn), (model.roi_heads, theirs.roi_heads))
    for mine, other in parts:
        other.load_state_dict(mine.state_dict())
    images, sizes, targets = batch((64, 96), (64, 96))
    found = model(images[row : row + 1], sizes[row : row + 1], targets[row : row + 1])
    wanted = theirs([images[row]], [targets[row]])
    assert set(found) == {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask"}
    for name, loss in found.items():
        torch.testing.assert_close(loss[0], wanted[name], rtol=1e-5, atol=1e-6)
        assert bool(loss[0] > 0.0) or row == 1
    for losses in (found, wanted):
        torch.stack([loss.sum() for loss in losses.values()]).sum().backward()
    for mine, other in parts:
        gradients = {name: p.grad for name, p in mine.named_parameters()}
        for name, p in other.named_parameters():
            torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-5)


def test_boxes_are_pooled_as_by_torchvision() -> None:
    """Boxes of all sizes, some of them beyond the borders, and an image without any: values and gradients."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for kind in (MultiScaleRoIAlign, RoiPool):
        generator.manual_seed(0)
        maps = {str(place): torch.randn(3, 5, 64 >> place, 48 >> place, generator=generator) for place in range(4)}
        corners = torch.rand(40, 2, generator=generator) * 300 - 30
        boxes = torch.cat([corners, corners + 500 * torch.rand(40, 2, generator=generator) ** 4], dim=1)
        boxes[0] = torch.tensor([192.0, 256, 192, 256])  # without area, in the corner
        leaves = [level.requires_grad_() for level in maps.values()]
        pool = kind(list(maps), 7, sampling_ratio=2)
        pool.scales, pool.map_levels = [0.25, 0.125, 0.0625, 0.03125], LevelMapper(2, 5)
        pooled = pool(maps, [boxes[:25], boxes[:0], boxes[25:]], [(256, 192)] * 3)
        weights = torch.randn(pooled.shape, generator=generator)
        found.append([pooled, *torch.autograd.grad((pooled * weights).sum(), leaves)])
    for wanted, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
    assert pool(maps, [boxes[:0]] * 3, []).shape == (0, 5, 7, 7)


def test_an_image_is_judged_alike_in_any_company() -> None:
    """Answers and gradients of padded images of several sizes are those of each alone, of parts and of the whole."""
    model = detector().train()
    draws = give_draws(model)
    given = batch((64, 96), (40, 90), (64, 64), (64, 96))
    total, gradients = costs(model, draws, given, slice(0, 4), num_rows=4)
    parts = [costs(model, draws, given, rows, num_rows=4) for rows in (slice(0, 1), slice(1, 3), slice(3, 4))]
    assert float(sum(part for part, _ in parts)) == pytest.approx(float(total), rel=1e-5)
    for whole, *of_parts in zip(gradients, *(found for _, found in parts), strict=True):
        torch.testing.assert_close(sum(of_parts), whole, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        images, sizes, _ = given
        together = model.eval()(images, sizes)
        alone = [model(images[row : row + 1], sizes[row : row + 1])[0] for row in range(4)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes, rtol=1e-4, atol=1e-4)


def test_places_stay_in_float32_where_products_are_computed_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = detector(channels=8).train()
    seen: dict[str, Tensor] = {}
    select = model.roi_heads.select_training_samples

    def watch(proposals: list[Tensor], targets: Any) -> Any:
        found = select(proposals, targets)
        seen.update(proposals=torch.cat(proposals), wanted=torch.cat(found[3]))
        return found

    monkeypatch.setattr(model.roi_heads, "select_training_samples", watch)
    images, sizes, targets = batch((320, 512))
    targets[0]["boxes"] = torch.tensor([[300.0, 301, 302, 303], [500, 250, 503, 251]])
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(images, sizes, targets)
        with torch.no_grad():
            [found] = model.eval()(images, sizes)
    assert {one.dtype for one in (*seen.values(), found.boxes, found.scores, *losses.values())} == {torch.float32}
    assert not torch.equal(seen["proposals"], seen["proposals"].bfloat16().float())  # not rounded on the way
    assert all(bool(one.isfinite().all()) for one in (*seen.values(), *losses.values()))


def test_folded_and_saved_models_say_the_same(tmp_path: Path) -> None:
    model = randomize(detector()).eval()
    save_model(model, tmp_path)
    images, sizes, _ = batch((64, 96), (40, 90))
    with torch.no_grad():
        wanted, *others = (one(images, sizes) for one in (model, fold(model), load_model(tmp_path)))
    for found in others:
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.scores, other.scores, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(one.boxes[:3], other.boxes[:3], rtol=1e-3, atol=1e-2)


def test_recomputed_blocks_draw_what_they_drew() -> None:
    found = []
    for is_recomputed in (False, True):
        model = detector().train()
        if is_recomputed:
            model.recompute_blocks()
        found.append(costs(model, give_draws(model), batch((64, 96), (40, 90)), slice(0, 2), num_rows=2)[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_samplers_choose_by_the_sample_and_the_step() -> None:
    sampler = BalancedSampler(8, positive_share=0.25)
    draws = give_draws(nn.Sequential(sampler))
    labels = [torch.tensor([1] * 6 + [0] * 20 + [-1] * 6), torch.tensor([0] * 5 + [2])]

    def choose(step: int, first: int, given: list[Tensor]) -> list[Tensor]:
        draws.begin(step, first=first, num_samples=len(given))
        return [torch.stack(pair) for pair in zip(*sampler(given), strict=True)]

    both = choose(3, 0, labels)
    assert [int(which.sum()) for which in (*both[0], *both[1])] == [2, 6, 1, 5]
    assert not bool((both[0][0] & (labels[0] != 1)).any())
    assert not bool((both[0][1] & (labels[0] != 0)).any())
    assert torch.equal(choose(3, 1, labels[1:])[0], both[1])
    assert not torch.equal(choose(4, 0, labels)[0], both[0])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: DetectorSettings(num_classes=2, anchor_sizes=(8, 16)), "anchor_sizes must be 5 whole numbers"),
        (lambda: DetectorSettings(num_classes=2, head="yolo"), "head must be one of mask_rcnn, faster_rcnn"),
        (lambda: detector("resmlp").eval()(torch.zeros(1, 3, 96, 96)), "takes images of 64 x 96 only"),
    ],
)
def test_what_cannot_be_is_refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()
