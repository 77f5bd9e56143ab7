"""From pixels to patches: linear, convolutional and hierarchical MLP stems (Three things section 5, table 7)."""

from itertools import pairwise

from torch import Tensor, nn

from vitrail.layers.norm import EPSILON

STEMS = ("linear", "linear_bn", "linear_gelu", "linear_bn_gelu", "conv", "conv_bn", "conv_ln", "hmlp_bn", "hmlp_ln")


class ChannelsFirstLayerNorm(nn.LayerNorm):
    """Layer normalisation over the channels of [batch, channels, height, width]."""

    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _norm(kind: str, dim: int) -> nn.Module:
    return nn.BatchNorm2d(dim) if kind == "bn" else ChannelsFirstLayerNorm(dim, eps=EPSILON)


class Stem(nn.Module):
    """Layers that turn [batch, channels, height, width] into [batch, dim, rows, columns].

    `exact` stems cut the image into patches that do not overlap, so its size must be a multiple of the patch.
    """

    def __init__(self, layers: list[nn.Module], *, patch_size: int, exact: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.patch_size = patch_size
        self.exact = exact

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image; a ValueError where it can't be cut."""
        patch = self.patch_size
        if height < 1 or width < 1:
            raise ValueError(f"an image of {height}x{width} is empty: it needs at least one patch of {patch} pixels")
        if self.exact and (height % patch or width % patch):
            near = [max(patch, round(side / patch) * patch) for side in (height, width)]
            raise ValueError(
                f"an image of {height}x{width} can't be cut into patches of {patch}: "
                f"resize it, e.g. to {near[0]}x{near[1]}"
            )
        return -(-height // patch), -(-width // patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def make_stem(kind: str, *, in_channels: int, dim: int, patch_size: int) -> Stem:
    """The stem called `kind`, one of STEMS."""
    if kind not in STEMS:
        raise ValueError(f"unknown stem {kind!r}: choose one of {', '.join(STEMS)}")
    family, *options = kind.split("_")
    if family == "linear":
        layers = linear_layers(in_channels, dim, patch_size, options)
    elif family == "conv":
        layers = convolution_layers(in_channels, dim, patch_size, options)
    else:
        layers = hierarchical_layers(in_channels, dim, patch_size, options[0])
    return Stem(layers, patch_size=patch_size, exact=family != "conv")


def linear_layers(in_channels: int, dim: int, patch_size: int, options: list[str]) -> list[nn.Module]:
    """One linear projection per patch; table 7 also tries a batch norm and a GELU after it."""
    layers: list[nn.Module] = [nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)]
    if "bn" in options:
        layers.append(nn.BatchNorm2d(dim))
    if "gelu" in options:
        layers.append(nn.GELU())
    return layers


def convolution_layers(in_channels: int, dim: int, patch_size: int, options: list[str]) -> list[nn.Module]:
    """LeViT's stem: 3x3 convolutions of stride 2 that double the width, a GELU between them.

    PatchConvNet's has no norm ("conv"); Three things puts one after each convolution ("conv_bn", "conv_ln").
    """
    steps = patch_size.bit_length() - 1
    if patch_size == 1 or patch_size != 1 << steps:
        raise ValueError(f"the convolutional stem halves the image: patch_size must be 2, 4, 8, ..., not {patch_size}")
    if dim % (1 << (steps - 1)):
        raise ValueError(f"the convolutional stem halves the width {steps - 1} times: dim {dim} must allow it")
    widths = [in_channels] + [dim >> (steps - 1 - step) for step in range(steps)]
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False))
        layers.extend(_norm(option, after) for option in options)
        if index < steps - 1:
            layers.append(nn.GELU())
    return layers


def hierarchical_layers(in_channels: int, dim: int, patch_size: int, norm: str) -> list[nn.Module]:
    """hMLP: 4x4 sub-patches merged two by two, each patch by itself, so that masking commutes with the stem."""
    merges = {4: [dim], 8: [dim // 4, dim], 16: [dim // 4, dim // 4, dim]}.get(patch_size)
    if merges is None:
        raise ValueError(f"the hMLP stem is made for patches of 4, 8 or 16 pixels, not {patch_size}")
    if len(merges) > 1 and dim % 4:
        raise ValueError(f"the hMLP stem starts from a quarter of the width: dim must be a multiple of 4, not {dim}")
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise([in_channels, *merges])):
        side = 4 if index == 0 else 2
        layers += [nn.Conv2d(before, after, side, stride=side), _norm(norm, after)]
        if index < len(merges) - 1:
            layers.append(nn.GELU())
    return layers
