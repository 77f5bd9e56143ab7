"""Communication between patches without attention."""

import torch

from vitrail.layers.mixing import ConvolutionMix, CrossPatchLinear, CrossPatchMLP, PatchConvolution, SqueezeExcite
from vitrail.layers.norm import Affine, ChannelsLastBatchNorm
from vitrail.layers.pooling import ClassLinear


def test_cross_patch_linear_is_the_same_for_every_channel() -> None:
    """Eq. 4.2: (A X^T)^T, A acting on the patches."""
    torch.manual_seed(0)
    layer = CrossPatchLinear(4)
    patches = torch.randn(2, 4, 3)
    expected = layer.linear(patches.transpose(1, 2)).transpose(1, 2)
    assert torch.allclose(layer(patches), expected, atol=1e-6)


def test_cross_patch_mlp_acts_on_patches() -> None:
    torch.manual_seed(0)
    layer = CrossPatchMLP(4)
    patches = torch.randn(2, 4, 3)
    changed = patches.clone()
    changed[:, :, 0] += 1.0
    difference = (layer(changed) - layer(patches)).abs().amax(dim=(0, 1))
    assert difference[0] > 1e-4
    assert difference[1:].max() == 0


def test_patch_convolution_reads_the_grid_in_rows() -> None:
    layer = PatchConvolution(1, kind="full")
    with torch.no_grad():
        layer.convolution.weight.zero_()
        layer.convolution.weight[0, 0, 1, 2] = 1.0  # the neighbour to the right
        assert layer.convolution.bias is not None
        layer.convolution.bias.zero_()
    maps = torch.arange(6.0).view(1, 2, 3, 1)
    assert layer(maps).flatten().tolist() == [1.0, 2.0, 0.0, 4.0, 5.0, 0.0]


def test_squeeze_excite_weighs_channels_by_their_average() -> None:
    layer = SqueezeExcite(4)
    maps = torch.randn(1, 3, 2, 4)
    squeezed = torch.relu(layer.reduce(maps.mean(dim=(1, 2))))
    assert torch.allclose(layer(maps), maps * torch.sigmoid(layer.expand(squeezed))[:, None, None])


def test_convolution_mix_is_the_block_of_the_thesis() -> None:
    """5.2.1: 1x1, GELU, 3x3 per channel, GELU, squeeze-excite, 1x1."""
    torch.manual_seed(0)
    layer = ConvolutionMix(4)
    maps = torch.randn(2, 3, 5, 4)
    gelu = torch.nn.functional.gelu
    hidden = gelu(layer.expand(maps)).permute(0, 3, 1, 2)
    hidden = gelu(layer.spatial(hidden.contiguous())).permute(0, 2, 3, 1)
    assert torch.allclose(layer(maps), layer.contract(layer.squeeze_excite(hidden)), atol=1e-6)


def test_class_linear_is_a_weighted_sum_of_token_and_patches() -> None:
    layer = ClassLinear(2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        layer.linear.bias.fill_(0.5)
    token, patches = torch.tensor([[[1.0]]]), torch.tensor([[[2.0], [3.0]]])
    assert layer(token, patches).item() == 321.5


def test_affine_is_a_scale_and_a_shift() -> None:
    layer = Affine(2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 3.0]))
        layer.bias.copy_(torch.tensor([1.0, -1.0]))
    assert layer(torch.tensor([[1.0, 1.0]])).tolist() == [[3.0, 2.0]]


def test_channels_last_batch_norm_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = ChannelsLastBatchNorm(4), torch.nn.BatchNorm2d(4)
    for _ in range(2):
        maps = torch.randn(3, 2, 5, 4)
        found, expected = ours(maps), theirs(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        assert torch.allclose(found, expected, atol=1e-5)
    maps = torch.randn(3, 2, 5, 4)
    expected = theirs.eval()(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert torch.allclose(ours.eval()(maps), expected, atol=1e-5)
    assert ours.batch_norm.num_batches_tracked == theirs.num_batches_tracked == 2
    assert ours(maps).is_contiguous()


def test_channels_last_batch_norm_can_be_synchronised() -> None:
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(ChannelsLastBatchNorm(4)).eval()
    maps = torch.randn(3, 2, 5, 4)
    assert torch.allclose(converted(maps), maps, atol=1e-4)
