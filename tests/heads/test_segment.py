"""UperNet and the linear head: the papers' parameters and operations, parity with another library, fusion by parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
from shrunk import randomize
from torch import nn

from vitrail.heads.segment import Segmented, SegmentModel, SegmentSettings
from vitrail.heads.upernet import Fusion, UperNet, upsample
from vitrail.inference.folding import fold
from vitrail.models.catalog import create_model
from vitrail.models.complexity import complexity
from vitrail.weights import load_model, save_model

# Thesis tables 6.12 and 5.3: name, width of the head, pyramid, parameters (M), multiply-adds (G) of 512 x 2048 pixels.
PRINTED = [
    ("deit3_tiny", 192, "blocks", "10.9", 148),
    ("deit3_small", 384, "blocks", "41.7", 588),
    ("deit3_base", 512, "blocks", "127.7", 1283),
    ("deit3_large", 512, "blocks", "353.6", 2231),
    ("patchconvnet_s60", 512, "last", "57.1", 952),
    ("patchconvnet_b60", 512, "last", "140.6", 1258),
    ("patchconvnet_b120", 512, "last", "229.8", 1550),
    ("patchconvnet_l120", 512, "last", "383.7", 2086),
]


@pytest.mark.parametrize(("name", "channels", "pyramid", "parameters", "operations"), PRINTED)
def test_parameters_and_operations_are_the_printed_ones(
    name: str, channels: int, pyramid: str, parameters: str, operations: int
) -> None:
    with torch.device("meta"):
        trunk: Any = create_model(name, num_classes=0, image_size=512)
        model = SegmentModel(trunk, SegmentSettings(num_classes=150, channels=channels, pyramid=pyramid))
    is_convolutional = pyramid == "last"
    dim, depth, num_patches = trunk.config.dim, trunk.config.depth, 32 * 128
    count = sum(parameter.numel() for parameter in model.parameters())
    count += 1001 * dim if is_convolutional else 0  # the tables count PatchConvNet's classifier of 1000 classes
    assert f"{count / 1e6:.1f}" == parameters
    products = complexity(model, image_size=(512, 2048)).multiply_adds  # Swin's size; it is not printed
    # The two products of self-attention are no layers, and are left out in the tables.
    products -= 0 if is_convolutional else 2 * depth * dim * (num_patches + 1) ** 2
    assert products / 1e9 == pytest.approx(operations, rel=0.003)


def carry_over(ours: UperNet, theirs: UPerNetDecoder) -> None:
    """Give a decoder of segmentation-models-pytorch our weights."""

    def copy(source: nn.Module, target: nn.Module) -> None:
        target.load_state_dict(source.state_dict())

    for scale, block in zip(ours.pooling.scales, theirs.psp.blocks, strict=True):
        copy(nn.Sequential(*list(scale.children())[1:]), block[1])
    copy(ours.pooling.join, theirs.psp.out_conv)
    for lateral, smooth, block, convolution in zip(
        ours.laterals[::-1], ours.smoothing[::-1], theirs.fpn_lateral_blocks, theirs.fpn_conv_blocks, strict=True
    ):
        copy(lateral, block.conv_norm_relu)
        copy(smooth, convolution)
    copy(ours.fusion.unit, theirs.fusion_block)
    # Its layer norm of every level is its own addition: neither Xiao et al. nor XCiT have it.
    theirs.feature_norms = nn.ModuleList(nn.Identity() for _ in theirs.feature_norms)


@pytest.mark.parametrize("is_training", [False, True])
def test_the_decoder_is_that_of_another_library(is_training: bool) -> None:
    torch.manual_seed(0)
    channels, sizes = (8, 12, 16, 20), ((24, 40), (12, 20), (6, 10), (3, 5))
    ours = UperNet(channels, channels=16, num_classes=3)
    theirs = UPerNetDecoder([3, 4, *channels], decoder_channels=16)
    carry_over(ours, theirs)
    ours.train(is_training)
    theirs.train(is_training)
    levels = [torch.randn(2, width, *size) for width, size in zip(channels, sizes, strict=True)]
    expected = theirs([torch.empty(0), torch.empty(0), *levels])
    torch.testing.assert_close(ours.fuse(levels), expected, atol=1e-5, rtol=1e-5)


def test_fusion_by_parts_is_the_convolution_of_all_levels() -> None:
    torch.manual_seed(0)
    fusion = Fusion(4, num_levels=3).double()
    levels = [torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True) for size in ((9, 13), (5, 7), (2, 3))]
    whole = fusion.unit(torch.cat([upsample(maps, levels[0]) for maps in levels], dim=1))
    parts = fusion(levels)
    torch.testing.assert_close(parts, whole)
    weight = fusion.unit.get_parameter("0.weight")
    wanted = torch.autograd.grad(whole.sin().sum(), [*levels, weight])
    for one, other in zip(torch.autograd.grad(parts.sin().sum(), [*levels, weight]), wanted, strict=True):
        torch.testing.assert_close(one, other)


def make_model(kind: str = "upernet", **settings: object) -> SegmentModel:
    trunk = create_model("deit_tiny", image_size=(48, 64), num_classes=0, dim=24, num_heads=2, depth=4)
    return SegmentModel(trunk, SegmentSettings(num_classes=5, kind=kind, channels=16, **settings))  # type: ignore[arg-type]


def test_answers_of_training_and_of_use() -> None:
    model, images = make_model(), torch.randn(2, 3, 48, 64)
    found = model.train()(images)
    assert isinstance(found, Segmented)
    assert found.auxiliary is not None
    assert (found.logits.shape, found.auxiliary.shape) == ((2, 5, 12, 16), (2, 5, 3, 4))
    smaller = model.eval().for_inference()
    assert not any(name.startswith("auxiliary") for name in smaller.state_dict())
    assert torch.equal(smaller(images), model(images))
    assert next(smaller.head.parameters()) is next(model.head.parameters())
    assert make_model("linear").eval()(images).shape == (2, 5, 3, 4)


def test_every_parameter_that_learns_has_a_gradient() -> None:
    model = make_model()
    found = model.train()(torch.randn(2, 3, 48, 64))
    (found.logits.square().mean() + found.auxiliary.square().mean()).backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in model.parameters())


def test_a_single_image_can_be_learnt_from() -> None:
    model = make_model().train()
    found = model(torch.randn(1, 3, 48, 64))
    found.logits.square().mean().backward()
    assert all(torch.isfinite(value.grad).all() for value in model.head.parameters() if value.grad is not None)
    norm = model.get_submodule("head.pooling.scales.0.2")
    assert torch.equal(norm.get_buffer("running_mean"), torch.zeros(16))


def test_a_model_for_another_size_has_the_same_heads() -> None:
    model = make_model().eval()
    larger = model.resized((64, 64))
    assert larger(torch.randn(1, 3, 64, 64)).shape == (1, 5, 16, 16)
    assert torch.equal(larger.state_dict()["head.classifier.weight"], model.state_dict()["head.classifier.weight"])


@pytest.mark.parametrize("kind", ["upernet", "linear"])
def test_a_folded_model_says_the_same(kind: str) -> None:
    model, images = randomize(make_model(kind)).eval(), torch.randn(1, 3, 48, 64)
    folded = fold(model)
    torch.testing.assert_close(folded(images), model(images), atol=1e-4, rtol=1e-4)
    num_norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in folded.modules())
    assert num_norms == (0 if kind == "upernet" else 1)


def test_a_saved_model_is_read_again(tmp_path: Path) -> None:
    model = randomize(make_model(blocks=(0, 1, 1, 3))).eval().for_inference()
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    images = torch.randn(1, 3, 48, 64)
    assert torch.equal(again(images), model(images))
    assert again.describe() == model.describe()
