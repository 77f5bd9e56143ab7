"""Photometric distortion: brightness, contrast, saturation and hue, each by chance, as mmsegmentation does it."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.draws import Draws

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
        height, width = pixels.shape[1:]
        values = _translate(pixels.permute(1, 2, 0).contiguous().numpy().tobytes(), before)
        if saturation != 1.0 or turn != 0.0:
            values = _turn(values, (width, height), saturation=saturation, turn=turn)
        values = _translate(values, after)
        return torch.frombuffer(bytearray(values), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)

    def _draw(self, draws: Draws, middle: float, strength: float) -> float:
        """A number around the middle, or the middle itself; two draws in any case."""
        is_changed, value = draws.chance(self.probability), draws.uniform(middle - strength, middle + strength)
        return value if is_changed else middle


def _table(values: np.ndarray) -> np.ndarray:
    """What becomes of each level: cut off at both ends, and to whole numbers."""
    return np.clip(values, 0, 255).astype(np.uint8)


def _translate(values: bytes, table: np.ndarray) -> bytes:
    return values if (table == _LEVELS).all() else values.translate(table.tobytes())


def _turn(values: bytes, size: tuple[int, int], *, saturation: float, turn: float) -> bytes:
    """Change saturation and hue, in Pillow's space of hue, saturation and value."""
    hues = ((_LEVELS.astype(np.int64) + round(turn * 256)) % 256).tolist()
    table = hues + _table(_LEVELS * saturation).tolist() + list(range(256))
    return Image.frombytes("RGB", size, values).convert("HSV").point(table).convert("RGB").tobytes()
