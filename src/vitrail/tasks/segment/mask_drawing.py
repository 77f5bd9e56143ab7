"""Pictures of masks: with a palette, over their image, and beside the truth."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.dense.contract import IGNORED
from vitrail.storage import write_whole

_SHARE = 0.55  # of the colour of a class in an overlay
_UNKNOWN = (255, 255, 255)  # colour of pixels whose class is not known
_WIDTH = 320  # of a picture in a comparison
_GAP, _LINE = 4, 16  # pixels between pictures, and of a line of text


class Compared(NamedTuple):
    """An image with its true mask and the answer."""

    pixels: np.ndarray  # uint8 [3, height, width]
    truth: np.ndarray  # uint8 [height, width]
    answer: np.ndarray  # uint8 [height, width]
    caption: str


def make_palette(colours: Sequence[Sequence[int]]) -> np.ndarray:
    """A colour for every value of a mask, uint8 [256, 3]; values beyond the classes are black, IGNORED white."""
    palette = np.zeros((256, 3), dtype=np.uint8)
    palette[: len(colours)] = colours
    palette[IGNORED] = _UNKNOWN
    return palette


def draw_mask(mask: np.ndarray, colours: Sequence[Sequence[int]]) -> Image.Image:
    """A picture whose pixels are the class indices, with the colours of the classes as its palette."""
    picture = Image.fromarray(mask)
    picture.putpalette(make_palette(colours).tobytes())
    return picture


def draw_overlay(pixels: np.ndarray, mask: np.ndarray, colours: Sequence[Sequence[int]]) -> Image.Image:
    """The image [3, height, width] with the colours of its classes laid over it; unknown pixels stay as they are."""
    image = pixels.transpose(1, 2, 0).astype(np.float32)
    mixed = (1.0 - _SHARE) * image + _SHARE * make_palette(colours)[mask]
    return Image.fromarray(np.where((mask == IGNORED)[..., None], image, mixed).round().astype(np.uint8))


def write_comparison(path: Path, shown: Sequence[Compared], *, colours: Sequence[Sequence[int]]) -> None:
    """Write rows of three pictures: the image, the truth over it, the answer over it; a caption above each row."""
    rows = [_draw_row(one, colours) for one in shown]
    sheet = Image.new("RGB", (rows[0].width, sum(row.height for row in rows) + _GAP * (len(rows) - 1)), "white")
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height + _GAP
    write_whole(path, lambda file: sheet.save(file, "png"))


def _draw_row(one: Compared, colours: Sequence[Sequence[int]]) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(one.pixels.transpose(1, 2, 0)))
    pictures = [image, draw_overlay(one.pixels, one.truth, colours), draw_overlay(one.pixels, one.answer, colours)]
    height = max(1, min(round(_WIDTH * image.height / image.width), 2 * _WIDTH))
    row = Image.new("RGB", (3 * _WIDTH + 2 * _GAP, height + _LINE), "white")
    ImageDraw.Draw(row).text((2, 1), one.caption, fill="black")
    for place, picture in enumerate(pictures):
        row.paste(picture.resize((_WIDTH, height)), (place * (_WIDTH + _GAP), _LINE))
    return row
