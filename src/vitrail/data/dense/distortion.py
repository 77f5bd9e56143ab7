"""Photometric distortion: brightness, contrast, saturation and hue, each by chance, as mmsegmentation does it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.draws import Draws

_BLOCK = 1 << 16  # pixels whose colours are turned at once
_LEVELS = np.arange(256, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class PhotometricDistortion:
    """Brightness first; contrast before saturation and hue, or behind them; after every change values are whole."""

    probability: float = 0.5  # of each of the four changes
    brightness: float = 32.0  # levels of 255
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 0.1  # a part of the circle

    def __call__(self, pixels: Tensor, draws: Draws) -> Tensor:  # uint8 [3, height, width], channels last in memory
        is_contrast_first = draws.chance(0.5)
        added = self._draw(draws, 0.0, self.brightness)
        contrast, saturation = self._draw(draws, 1.0, self.contrast), self._draw(draws, 1.0, self.saturation)
        turn = self._draw(draws, 0.0, self.hue)
        before = _table(_LEVELS + added)
        after = _table(_LEVELS * contrast)
        if is_contrast_first or (saturation == 1.0 and turn == 0.0):
            before, after = after[before], _table(_LEVELS)
        values = _translate(pixels.permute(1, 2, 0).contiguous().numpy(), before)
        if saturation != 1.0 or turn != 0.0:
            values = turn_colours(values, saturation=saturation, turn=turn)
        return torch.from_numpy(_translate(values, after)).permute(2, 0, 1)

    def _draw(self, draws: Draws, middle: float, strength: float) -> float:
        """A number around the middle, or the middle itself; two draws in any case."""
        is_changed, value = draws.chance(self.probability), draws.uniform(middle - strength, middle + strength)
        return value if is_changed else middle


def _table(values: np.ndarray) -> np.ndarray:
    """What becomes of each level: cut off at both ends, and to whole numbers."""
    return np.clip(values, 0, 255).astype(np.uint8)


def _translate(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Look every byte up; a text of bytes does it many times faster than an index of NumPy's."""
    if (table == _LEVELS).all():
        return values
    looked_up = bytearray(values.tobytes()).translate(table.tobytes())
    return np.frombuffer(looked_up, dtype=np.uint8).reshape(values.shape)


def turn_colours(values: np.ndarray, *, saturation: float, turn: float) -> np.ndarray:
    """Multiply the saturation of pixels [height, width, 3], and turn the circle of hues by a part of it.

    As in the space of hue, saturation and value, of which only what changes is computed: `value`, the largest of the
    three channels, stays, and so does what lies between the channels in the turned order.
    """
    flat = values.reshape(-1, 3)
    turned = np.empty_like(flat)
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK]
        channels = torch.from_numpy(np.ascontiguousarray(block.T)).float()
        turned[start : start + _BLOCK] = _turn_block(channels, saturation, turn).numpy().astype(np.uint8).T
    return turned.reshape(values.shape)


def _turn_block(channels: Tensor, saturation: float, turn: float) -> Tensor:  # float [3, pixels], both
    red, green, blue = channels
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    share = chroma.clamp(min=0.5).reciprocal_()  # a chroma of 0 is of no hue: any number will do
    new_chroma = torch.minimum(chroma * saturation, value)
    if turn == 0.0:
        return (channels - value).mul_(new_chroma * share).add_(value).add_(0.5)
    hue = torch.where(
        value == red,
        (green - blue).mul_(share),
        torch.where(value == green, (blue - red).mul_(share).add_(2), (red - green).mul_(share).add_(4)),
    )
    hue.add_(6 * turn)
    hue.sub_(hue.div(6).floor_().mul_(6))  # 0 to 6: red, yellow, green, cyan, blue, magenta
    parts = torch.empty_like(channels)
    torch.sub(hue, 3, out=parts[0]).abs_().sub_(1)
    torch.sub(hue, 2, out=parts[1]).abs_().neg_().add_(2)
    torch.sub(hue, 4, out=parts[2]).abs_().neg_().add_(2)
    return parts.clamp_(0, 1).mul_(new_chroma).add_(value.sub_(new_chroma)).add_(0.5)
