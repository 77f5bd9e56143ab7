"""UperNet (Xiao et al. 2018): pyramid pooling, a feature pyramid and its fusion, and the auxiliary FCN head."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.layers.sample_draws import ChannelDropout

POOLED = (1, 2, 3, 6)  # sides of the grids that pyramid pooling averages to
AUXILIARY_CHANNELS = 256


class UperNet(nn.Module):
    """Logits on the grid of the finest of four levels.

    The layout is the one that XCiT and DeiT III trained: convolutions without bias, batch norm and ReLU, and dropout of
    whole channels before the classifier.
    """

    def __init__(self, in_channels: Sequence[int], *, channels: int, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        *finer, coarsest = in_channels
        self.pooling = PyramidPooling(coarsest, channels)
        self.laterals = nn.ModuleList(make_unit(width, channels, side=1) for width in finer)
        self.smoothing = nn.ModuleList(make_unit(channels, channels, side=3) for _ in finer)
        self.fusion = Fusion(channels, num_levels=len(in_channels))
        self.dropout = ChannelDropout(dropout)
        self.classifier = nn.Conv2d(channels, num_classes, 1)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Logits [batch, classes, height, width] of levels from fine to coarse."""
        return self.classifier(self.dropout(self.fuse(levels)))

    def fuse(self, levels: Sequence[Tensor]) -> Tensor:
        """What the classifier reads: all levels in one map, as fine as the first."""
        if levels[0].device.type == "cpu" and torch.is_grad_enabled():
            levels = [maps.contiguous() for maps in levels]  # backward passes of convolutions are slower on tokens
        *finer, coarsest = levels
        above = self.pooling(coarsest)
        found = [above]
        for maps, lateral, smooth in zip(finer[::-1], self.laterals[::-1], self.smoothing[::-1], strict=True):
            above = lateral(maps) + upsample(above, maps)
            found.append(smooth(above))
        return self.fusion(found[::-1])


class PyramidPooling(nn.Module):
    """The coarsest level beside its averages over grids of 1, 2, 3 and 6 cells a side."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), *make_unit(in_channels, channels, side=1)) for side in POOLED
        )
        self.join = make_unit(in_channels + len(POOLED) * channels, channels, side=3)

    def forward(self, maps: Tensor) -> Tensor:
        return self.join(torch.cat([maps, *(upsample(pool(scale, maps), maps) for scale in self.scales)], dim=1))


def pool(scale: nn.Module, maps: Tensor) -> Tensor:
    """The layers of a scale; one image has no statistics of its one average, and is normalised by the running ones."""
    for layer in scale.children():
        is_alone = layer.training and maps.numel() == maps.shape[1] and "forward" not in vars(layer)
        if is_alone and isinstance(layer, nn.BatchNorm2d):  # and no other process has images for it
            maps = functional.batch_norm(
                maps, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps
            )
        else:
            maps = layer(maps)
    return maps


class Fusion(nn.Module):
    """A 3x3 convolution of all levels side by side, upsampled to the finest; batch norm and ReLU.

    A convolution mixes channels and shifts them, and upsampling does neither: on a CPU the channels of a coarse level
    are mixed on its own grid, once for each tap, and the results are upsampled, shifted and summed. That is the same
    sum in another order, with a fraction of the products and no copy of all levels on the finest grid.
    """

    def __init__(self, channels: int, *, num_levels: int) -> None:
        super().__init__()
        self.channels = channels
        self.unit = make_unit(channels * num_levels, channels, side=3)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        finest = levels[0]
        if finest.device.type != "cpu":
            return self.unit(torch.cat([upsample(maps, finest) for maps in levels], dim=1))
        convolution, *others = self.unit
        assert isinstance(convolution, nn.Conv2d)
        first, *coarse = convolution.weight.split(self.channels, dim=1)
        total = functional.conv2d(finest, first, convolution.bias, padding=1)
        for maps, weight in zip(levels[1:], coarse, strict=True):
            more = shifted_products(maps, weight, size=(finest.shape[2], finest.shape[3]))
            total = total + more if torch.is_grad_enabled() else total.add_(more)
        for layer in others:
            total = layer(total)
        return total


def shifted_products(maps: Tensor, weight: Tensor, *, size: tuple[int, int]) -> Tensor:
    """The 3x3 convolution with zero padding of maps upsampled to a size, from products on their own grid.

    Columns are upsampled and shifted first, while there are few rows; one row of taps after the other.
    """
    of_row = []
    for taps in weight.permute(2, 3, 0, 1):
        products = functional.conv2d(maps, taps.flatten(0, 1)[..., None, None])
        wide = functional.interpolate(products, size=(maps.shape[2], size[1]), mode="bilinear", align_corners=False)
        left, middle, right = wide.chunk(3, dim=1)
        line = middle + functional.pad(left[..., :-1], (1, 0)) + functional.pad(right[..., 1:], (0, 1))
        of_row.append(line)

    def upward(line: Tensor) -> Tensor:
        return functional.interpolate(line, size=size, mode="bilinear", align_corners=False)

    above, centre, below = of_row
    total = upward(centre)
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():  # the same sum, in place
        total[..., 1:, :] += upward(above)[..., :-1, :]
        total[..., :-1, :] += upward(below)[..., 1:, :]
        return total
    total = total + functional.pad(upward(above)[..., :-1, :], (0, 0, 1, 0))
    return total + functional.pad(upward(below)[..., 1:, :], (0, 0, 0, 1))


class AuxiliaryHead(nn.Module):
    """A small FCN on one level, which learns beside the head and is not used after training."""

    def __init__(
        self, in_channels: int, *, num_classes: int, channels: int = AUXILIARY_CHANNELS, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.unit = make_unit(in_channels, channels, side=3)
        self.dropout = ChannelDropout(dropout)
        self.classifier = nn.Conv2d(channels, num_classes, 1)

    def forward(self, maps: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.unit(maps)))


def make_unit(before: int, after: int, *, side: int) -> nn.Sequential:
    """A convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, side, padding=side // 2, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


def upsample(maps: Tensor, like: Tensor) -> Tensor:
    """Maps on the grid of others, by bilinear interpolation."""
    if maps.shape[2:] == like.shape[2:]:
        return maps
    return functional.interpolate(maps, size=like.shape[2:], mode="bilinear", align_corners=False)
