"""Changes of colour and sharpness on uint8 pixels [3, height, width], channels last in memory.

They give Pillow's results within one or two of 255 levels. A picture is seen as rows of width times 3 numbers: then
every step runs over contiguous memory, a shift by one pixel is a shift by three numbers, and what belongs to a channel
is a row of numbers repeated for each pixel.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

# The luma of ITU-R 601, as Pillow, torchvision and JPEG have it.
_LUMA = (0.299, 0.587, 0.114)
# Pixels that are blended by one row of a matrix product: a 3 x 3 matrix alone leaves the CPU's vectors empty.
_NUM_BLENDED = 8


# Bytes to bytes


def invert(pixels: Tensor) -> Tensor:
    """Invert every value: the negative of a picture."""
    return pixels.bitwise_not()


def posterise(pixels: Tensor, bits: int) -> Tensor:
    """Keep the upper bits of each value, at least one."""
    return pixels.bitwise_and(256 - (1 << (8 - min(8, max(1, bits)))))


def solarise(pixels: Tensor, threshold: float) -> Tensor:
    """Invert the values from the threshold on."""
    if threshold > 255:
        return pixels
    rows = _as_rows(pixels).numpy()
    is_inverted = (rows >= math.ceil(max(0.0, threshold))).view(np.uint8)
    return _as_pixels(torch.from_numpy(rows ^ np.negative(is_inverted)))  # -1 is 255: all bits are turned


def solarise_add(pixels: Tensor, addition: int, *, threshold: int = 128) -> Tensor:
    """Add to the values below the threshold; the sum may reach 255 at most."""
    if addition + threshold > 256:
        raise ValueError(f"{addition} added to values below {threshold} would go beyond 255")
    rows = _as_rows(pixels).numpy()
    return _as_pixels(torch.from_numpy(rows + (rows < threshold).view(np.uint8) * np.uint8(addition)))


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch each channel to the whole range."""
    rows = _as_rows(pixels).numpy()
    low = rows.min(axis=0).reshape(-1, 3).min(axis=0).astype(np.float32)
    high = rows.max(axis=0).reshape(-1, 3).max(axis=0).astype(np.float32)
    is_flat = low == high
    scale = np.where(is_flat, 1, 255 / np.where(is_flat, 1, high - low)).astype(np.float32)
    # A thousandth more: cutting off the fraction would take a whole level from numbers that should be whole.
    shift = np.where(is_flat, 0, -low * scale).astype(np.float32) + np.float32(1e-3)
    num_columns = pixels.shape[2]
    stretched = rows * np.tile(scale, num_columns)
    stretched += np.tile(shift, num_columns)
    return _as_pixels(torch.from_numpy(stretched.astype(np.uint8)))


def equalise(pixels: Tensor) -> Tensor:
    """Spread the values of each channel evenly."""
    return _by_pillow(pixels, ImageOps.equalize)


# Enhancements: a factor of 1 changes nothing, 0 gives black, grey or smooth


def brighten(pixels: Tensor, factor: float) -> Tensor:
    """Blend with black."""
    return enhance(pixels, [("brightness", factor)])


def change_contrast(pixels: Tensor, factor: float) -> Tensor:
    """Blend with the picture's mean grey."""
    return enhance(pixels, [("contrast", factor)])


def saturate(pixels: Tensor, factor: float) -> Tensor:
    """Blend with the grey picture."""
    return enhance(pixels, [("saturation", factor)])


def grey(pixels: Tensor) -> Tensor:
    """The luma in all three channels."""
    return _to_bytes(_blend(_to_floats(pixels), own=0.0, grey=1.0, shift=0.5))


def enhance(pixels: Tensor, steps: Sequence[tuple[str, float]]) -> Tensor:
    """Change "brightness", "contrast", "saturation" and "hue", each by its factor, one after the other.

    All but hue make of a pixel so much of its own colour, so much of its grey, and a shift. Such blends are again one,
    and so they are put together first; only a factor above 1 is applied at once, as its result is cut off at 255.
    """
    values = _to_floats(pixels)
    own, grey, shift = 1.0, 0.0, 0.0
    for name, factor in steps:
        if name == "hue":
            values = _to_floats(turn_hue(_to_bytes(_blend(values, own=own, grey=grey, shift=shift)), factor))
            own, grey, shift = 1.0, 0.0, 0.0
        elif name == "saturation":
            own, grey = factor * own, grey + (1 - factor) * own
        else:
            black = round((own + grey) * _mean_luma(values) + shift) if name == "contrast" else 0
            own, grey, shift = factor * own, factor * grey, factor * shift + (1 - factor) * black
        if name != "hue" and factor > 1:
            values = _blend(values, own=own, grey=grey, shift=shift).clamp_(0, 255)
            own, grey, shift = 1.0, 0.0, 0.0
    return _to_bytes(_blend(values, own=own, grey=grey, shift=shift))


def _mean_luma(values: Tensor) -> float:
    means = values.mean(dim=0).view(-1, 3).mean(dim=0).tolist()
    return sum(weight * mean for weight, mean in zip(_LUMA, means, strict=True))


def _blend(values: Tensor, *, own: float, grey: float, shift: float) -> Tensor:
    """So much of each pixel, so much of its luma, and a shift; in place where it can be."""
    if grey == 0.0:
        values = values if own == 1.0 else values.mul_(own)
        return values.add_(shift) if shift else values
    identity, luma = _blend_matrices()
    matrix = (own * identity).add_(luma, alpha=grey)
    size = len(matrix)
    flat = values.view(-1)
    blended = torch.empty_like(flat)
    whole = flat.numel() - flat.numel() % size
    shifts = torch.full((size,), shift)
    torch.addmm(shifts, flat[:whole].view(-1, size), matrix, out=blended[:whole].view(-1, size))
    if whole < flat.numel():
        torch.addmm(shifts[:3], flat[whole:].view(-1, 3), matrix[:3, :3], out=blended[whole:].view(-1, 3))
    return blended.view_as(values)


@cache
def _blend_matrices() -> tuple[Tensor, Tensor]:
    """What a row of pixels is multiplied with to stay as it is, and to become grey."""
    luma = torch.tensor(_LUMA)[:, None].expand(3, 3)
    return torch.eye(3 * _NUM_BLENDED), torch.block_diag(*[luma] * _NUM_BLENDED)


def sharpen(pixels: Tensor, factor: float) -> Tensor:
    """Blend with the picture smoothed by 3 x 3 weights of 1, in the centre 5; the outermost pixels stay."""
    height, width = pixels.shape[1:]
    if height < 3 or width < 3:
        return pixels
    rows = _as_rows(pixels).to(torch.int16)
    centre = rows[1:-1, 3:-3]
    columns = (rows[:-2] + rows[2:]).add_(rows[1:-1])
    smooth = (columns[:, :-6] + columns[:, 6:]).add_(columns[:, 3:-3]).add_(centre, alpha=4)
    blended = smooth.float().mul_((1.0 - factor) / 13).add_(centre, alpha=factor).clamp_(0, 255)
    rows[1:-1, 3:-3] = blended
    return _as_pixels(rows.to(torch.uint8))


def turn_hue(pixels: Tensor, turn: float) -> Tensor:
    """Turn the circle of hues by a part of it, -0.5 to 0.5."""

    def convert(image: Image.Image) -> Image.Image:
        hue, saturation, value = image.convert("HSV").split()
        shift = int(turn * 255)
        hue = hue.point([(level + shift) % 256 for level in range(256)])
        return Image.merge("HSV", (hue, saturation, value)).convert("RGB")

    return _by_pillow(pixels, convert)


# Blur


def blur(pixels: Tensor, radius: float) -> Tensor:
    """Blur as Pillow's GaussianBlur of that standard deviation does: three boxes, one after the other.

    It runs on 16 bits, with values of -128 to 127 and weights that add up to 256, and along the memory, in which the
    neighbours below and beside a pixel are always equally far away; what is mixed over the border is left out.
    """
    weights = _blur_weights(radius)
    reach = len(weights) - 1
    if reach == 0:
        return pixels
    height, width = pixels.shape[1:]
    padded = _pad(pixels, reach).sub_(128)
    length = padded.stride(0)
    values = _sum_shifted(_sum_shifted(padded.view(-1), weights, step=length), weights, step=3).add_(128)
    return _as_pixels(values.as_strided((height, 3 * width), (length, 1)).to(torch.uint8))


def _blur_weights(radius: float) -> list[int]:
    """Half of the symmetric weights, the centre first.

    A box of real width is ones with a fraction at each end (Gwosdek et al., Theoretical Foundations of Gaussian
    Convolution by Extended Box Filtering, 2011); three of them have the variance of the Gaussian.
    """
    variance = radius * radius / 3
    whole = math.floor((math.sqrt(12 * variance + 1) - 1) / 2)
    fraction = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    box = np.array([fraction, *[1.0] * (2 * whole + 1), fraction]) / (2 * whole + 1 + 2 * fraction)
    kernel = np.convolve(np.convolve(box, box), box)
    side = [round(256 * weight) for weight in kernel[len(kernel) // 2 + 1 :]]
    side = [weight for weight in side if weight > 0]
    return [256 - 2 * sum(side), *side]


def _pad(pixels: Tensor, reach: int) -> Tensor:
    """The picture as int16 [height, width, 3], with the outermost pixels repeated on all sides."""
    height, width = pixels.shape[1:]
    padded = np.empty((height + 2 * reach, width + 2 * reach, 3), dtype=np.int16)
    inner = padded[reach : reach + height]
    inner[:, reach : reach + width] = pixels.permute(1, 2, 0).numpy()
    inner[:, :reach], inner[:, reach + width :] = inner[:, reach, None], inner[:, reach + width - 1, None]
    padded[:reach], padded[reach + height :] = inner[0], inner[-1]
    return torch.from_numpy(padded)


def _sum_shifted(values: Tensor, weights: Sequence[int], *, step: int) -> Tensor:  # [length] -> [shorter]
    """The weighted mean of the neighbours of each place, which lie `step` apart; as many are lost at both ends."""
    reach = len(weights) - 1
    length = len(values) - 2 * reach * step
    total = values.narrow(0, reach * step, length) * weights[0]
    for distance in range(1, reach + 1):
        total.add_(values.narrow(0, (reach - distance) * step, length), alpha=weights[distance])
        total.add_(values.narrow(0, (reach + distance) * step, length), alpha=weights[distance])
    return total.add_(128).bitwise_right_shift_(8)  # divided by 256 and rounded


# Layouts and types


def _as_rows(pixels: Tensor) -> Tensor:
    """[3, height, width] as [height, width times 3]; the same memory if it is channels last."""
    return pixels.permute(1, 2, 0).contiguous().flatten(1)


def _as_pixels(rows: Tensor) -> Tensor:
    return rows.view(rows.shape[0], -1, 3).permute(2, 0, 1)


def _to_floats(pixels: Tensor) -> Tensor:
    return _as_rows(pixels).float()


def _to_bytes(values: Tensor) -> Tensor:
    """Cut off the fractions, as Pillow's blending does. NumPy does it many times faster than torch."""
    return _as_pixels(torch.from_numpy(values.numpy().astype(np.uint8)))


def _by_pillow(pixels: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    return torch.from_numpy(np.array(change(image))).permute(2, 0, 1)
