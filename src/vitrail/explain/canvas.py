"""Pieces of pictures: colours, text, and maps laid over the part of an image that a model saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torch.nn import functional

INK, QUIET, PAPER = (17, 17, 17), (110, 110, 110), (255, 255, 255)
_FRAME = (255, 255, 255)
_OUTSIDE = 0.45  # how much remains of what the model did not see
_STRENGTH = (0.40, 0.85)  # of the colours over the grey image, for the least and the greatest value


@dataclass(frozen=True)
class Rectangle:
    """A part of an image, in pixels of it."""

    top: float
    left: float
    height: float
    width: float

    def scaled(self, factor: float) -> "Rectangle":
        """The same part of an image of another size."""
        return Rectangle(self.top * factor, self.left * factor, self.height * factor, self.width * factor)

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom, to whole pixels, at least one apart."""
        left, top = round(self.left), round(self.top)
        return left, top, max(left + 1, round(self.left + self.width)), max(top + 1, round(self.top + self.height))


@cache
def cividis() -> np.ndarray:
    """The colours of 256 values from low to high, uint8 [256, 3]; told apart by colour-blind people too."""
    colours = matplotlib.colormaps["cividis"](np.arange(256))
    return (colours[:, :3] * 255).round().astype(np.uint8)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """A plain typeface that has most letters."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def scale_to_unit(values: Tensor) -> Tensor:
    """Values moved to the range from 0, the least, to 1, the greatest; zeros where all are the same."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def enlarge(values: Tensor, *, size: tuple[int, int], is_smooth: bool = True) -> np.ndarray:
    """A map [height, width] at another height and width, its least value 0 and its greatest 255, uint8."""
    maps = values.detach().float().cpu()[None, None]
    if is_smooth:
        maps = functional.interpolate(maps, size=size, mode="bicubic", align_corners=False)
        maps = maps.clamp(values.min().item(), values.max().item())  # bicubic overshoots
    else:
        maps = functional.interpolate(maps, size=size, mode="nearest-exact")
    return (scale_to_unit(maps[0, 0]) * 255).round().to(torch.uint8).numpy()


def colour(values: Tensor, *, size: tuple[int, int]) -> Image.Image:
    """A map [height, width] in cividis, each of its cells a rectangle of one colour."""
    return Image.fromarray(cividis()[enlarge(values, size=size, is_smooth=False)])


def overlay(image: Image.Image, values: Tensor, seen: Rectangle) -> Image.Image:
    """A map in colours over the grey image, where the model saw it; what it did not see is dark."""
    grey = image.convert("L")
    left, top, right, bottom = seen.edges
    levels = enlarge(values, size=(bottom - top, right - left))
    coloured = Image.fromarray(cividis()[levels])
    low, high = _STRENGTH
    strength = Image.fromarray((255 * (low + (high - low) * levels / 255)).round().astype(np.uint8))
    canvas = grey.point(lambda level: level * _OUTSIDE).convert("RGB")
    part = grey.crop((left, top, right, bottom)).convert("RGB")
    canvas.paste(Image.composite(coloured, part, strength), (left, top))
    return canvas


def show_kept(image: Image.Image, kept: Tensor, seen: Rectangle) -> Image.Image:
    """The image where a mask [height, width] of patches keeps it, with a light edge; the rest is grey and dark."""
    left, top, right, bottom = seen.edges
    levels = kept.float().cpu()[None, None]
    mask = functional.interpolate(levels, size=(bottom - top, right - left), mode="nearest-exact")[0, 0]
    canvas = image.convert("L").point(lambda level: level * _OUTSIDE).convert("RGB")
    part = image.convert("RGB").crop((left, top, right, bottom))
    inside = Image.fromarray((255 * mask).to(torch.uint8).numpy())
    canvas.paste(part, (left, top), inside)
    edge = ImageChops.difference(inside, inside.filter(ImageFilter.MinFilter(3)))
    canvas.paste(_FRAME, (left, top), edge)
    return canvas


def frame(image: Image.Image, seen: Rectangle) -> Image.Image:
    """The image with a frame around what the model saw, if that is not all of it."""
    left, top, right, bottom = seen.edges
    if (left, top, right, bottom) == (0, 0, *image.size):
        return image
    framed = image.copy()
    thickness = max(1, min(image.size) // 160)
    draw = ImageDraw.Draw(framed)
    draw.rectangle((left, top, right - 1, bottom - 1), outline=INK, width=thickness + 1)
    draw.rectangle((left, top, right - 1, bottom - 1), outline=_FRAME, width=thickness)
    return framed


def wrap(text: str, *, size: int, width: int) -> list[str]:
    """The text in lines that fit a width in pixels; a word that does not is cut, with an ellipsis."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if font(size).getlength(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while len(word) > 1 and font(size).getlength(word) > width:
            word = word.rstrip("…")[:-1] + "…"
        line = word
    return [*lines, line] if line else lines


def write(draw: ImageDraw.ImageDraw, place: tuple[int, int], lines: Sequence[str], *, size: int, ink: object) -> int:
    """Lines of text from a place (left, top) on; returns the place below them."""
    left, top = place
    for line in lines:
        draw.text((left, top), line, font=font(size), fill=ink)  # type: ignore[arg-type]
        top += line_height(size)
    return top


def line_height(size: int) -> int:
    """The distance from one line of text to the next, in pixels."""
    return round(size * 1.35)
