"""The layout of a preview: large panels side by side, then strips of small pictures with a line below each."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.explain.canvas import INK, PAPER, QUIET, Rectangle, font, line_height, wrap, write
from vitrail.pages.words import shorten

WIDTH = 1280  # pixels of a sheet
_MARGIN, _GAP = 28, 12
_PANEL_HEIGHT = 330
_COLUMNS = 8  # small pictures beside each other
_HEADING, _TEXT, _SMALL = 24, 17, 14  # sizes of letters
_SMALL_IMAGE = 100  # pixels below which an image is enlarged without blurring its pixels
_OVERSAMPLING = 3  # so that thin boxes are smooth
_VEIL, _DARK = 0.72, 0.3  # how bright an image remains below boxes, and where it is not seen
_FRAME = (255, 196, 0)


@dataclass(frozen=True, eq=False)
class Strip:
    """Small pictures that belong together."""

    title: str
    pictures: Sequence[tuple[Sequence[str], Image.Image]]  # the lines below each, and the picture


def as_image(pixels: Tensor) -> Image.Image:
    """A picture of uint8 pixels [3, height, width]."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def draw_boxes(image: Image.Image, boxes: Sequence[Rectangle], *, border: float) -> Image.Image:
    """A panel of the image with boxes over it, each of its own colour.

    `border` is the room around the image for boxes that leave it, as a share of its shorter side.
    """
    panel = _Panel(image, border)
    canvas = panel.canvas(image.point(lambda level: round(level * _VEIL)))
    draw = ImageDraw.Draw(canvas)
    for box, ink in zip(boxes, _hues(len(boxes)), strict=True):
        draw.rectangle(panel.place(box), outline=ink, width=2 * _OVERSAMPLING)
    return panel.reduce(canvas)


def draw_seen(image: Image.Image, seen: Rectangle, *, border: float) -> Image.Image:
    """A panel of the image, with the same room around it, in which all but the part that is seen is dark."""
    panel = _Panel(image, border)
    canvas = panel.canvas(image.point(lambda level: round(level * _DARK)))
    left, top, right, bottom = panel.place(seen)
    canvas.paste(panel.canvas(image).crop((left, top, right, bottom)), (left, top))
    ImageDraw.Draw(canvas).rectangle((left, top, right, bottom), outline=_FRAME, width=2 * _OVERSAMPLING)
    return panel.reduce(canvas)


class _Panel:
    """Where an image lies in its panel, which is drawn larger than it is shown."""

    def __init__(self, image: Image.Image, border: float) -> None:
        width, height = image.size
        self.factor = min(_panel_width() / width, _PANEL_HEIGHT / height) / (1 + 2 * border)
        self.size = (max(1, round(width * self.factor)), max(1, round(height * self.factor)))
        self.border = int(border * min(self.size))

    def canvas(self, image: Image.Image) -> Image.Image:
        """The image with its border, enlarged."""
        width, height = self.size
        inner = _resize(image, self.size).resize(
            (width * _OVERSAMPLING, height * _OVERSAMPLING), Image.Resampling.NEAREST
        )
        canvas = Image.new(
            "RGB", ((width + 2 * self.border) * _OVERSAMPLING, (height + 2 * self.border) * _OVERSAMPLING), PAPER
        )
        canvas.paste(inner, (self.border * _OVERSAMPLING, self.border * _OVERSAMPLING))
        return canvas

    def place(self, box: Rectangle) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of a part of the image on the enlarged canvas."""
        left, top, right, bottom = (
            edge + self.border * _OVERSAMPLING for edge in box.scaled(self.factor * _OVERSAMPLING).edges
        )
        return left, top, right, bottom

    def reduce(self, canvas: Image.Image) -> Image.Image:
        """The canvas at the size that it is shown in."""
        return canvas.resize((canvas.width // _OVERSAMPLING, canvas.height // _OVERSAMPLING), Image.Resampling.LANCZOS)


def _hues(count: int) -> list[tuple[int, int, int]]:
    """As many bright colours, from blue to red."""
    colours = (matplotlib.colormaps["turbo"](np.linspace(0.08, 0.92, max(1, count)))[:, :3] * 255).round().astype(int)
    return [(int(red), int(green), int(blue)) for red, green, blue in colours[:count]]


def _panel_width(count: int = 3) -> int:
    return (WIDTH - 2 * _MARGIN - (count - 1) * _GAP) // count


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    is_small = max(image.size) < _SMALL_IMAGE
    return image.resize(size, Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS)


def draw_sheet(
    title: str, subtitle: str, panels: Sequence[tuple[str, Image.Image]], strips: Sequence[Strip]
) -> Image.Image:
    """Everything on one sheet."""
    drawn = [_draw_strip(strip) for strip in strips if strip.pictures]
    head = line_height(_HEADING) + (line_height(_TEXT) if subtitle else 0) + _GAP
    panel_height = max((panel.height for _, panel in panels), default=0)
    panel_part = panel_height + line_height(_TEXT) + _GAP if panels else 0
    height = 2 * _MARGIN + head + panel_part + sum(strip.height + _GAP for strip in drawn)
    sheet = Image.new("RGB", (WIDTH, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    inner = WIDTH - 2 * _MARGIN
    top = write(draw, (_MARGIN, _MARGIN), wrap(title, size=_HEADING, width=inner)[:1], size=_HEADING, ink=INK)
    if subtitle:
        top = write(draw, (_MARGIN, top), wrap(subtitle, size=_TEXT, width=inner)[:1], size=_TEXT, ink=QUIET)
    top += _GAP
    for number, (name, panel) in enumerate(panels):
        left = _MARGIN + number * (_panel_width() + _GAP)
        write(draw, (left, top), wrap(name, size=_TEXT, width=_panel_width())[:1], size=_TEXT, ink=INK)
        sheet.paste(panel, (left, top + line_height(_TEXT)))
    top += panel_part
    for strip in drawn:
        sheet.paste(strip, (_MARGIN, top))
        top += strip.height + _GAP
    return sheet


def _draw_strip(strip: Strip) -> Image.Image:
    """A strip as wide as the sheet; a long one is broken into lines."""
    width = WIDTH - 2 * _MARGIN
    tile_width = (width - (_COLUMNS - 1) * _GAP) // _COLUMNS
    first = strip.pictures[0][1]
    tile_height = max(1, round(tile_width * first.height / first.width))
    captions = [[_fit(line, width=tile_width) for line in lines] for lines, _ in strip.pictures]
    num_lines = max(map(len, captions))
    step = tile_height + num_lines * line_height(_SMALL) + _GAP
    heading = line_height(_TEXT) + 4
    num_rows = -(-len(captions) // _COLUMNS)
    drawn = Image.new("RGB", (width, heading + num_rows * step), PAPER)
    draw = ImageDraw.Draw(drawn)
    write(draw, (0, 0), wrap(strip.title, size=_TEXT, width=width)[:1], size=_TEXT, ink=INK)
    for number, ((_, picture), caption) in enumerate(zip(strip.pictures, captions, strict=True)):
        left, top = number % _COLUMNS * (tile_width + _GAP), heading + number // _COLUMNS * step
        drawn.paste(_resize(picture, (tile_width, tile_height)), (left, top))
        write(draw, (left, top + tile_height + 2), caption, size=_SMALL, ink=QUIET)
    return drawn


def _fit(line: str, *, width: int) -> str:
    """A line of a caption, cut in its middle where it is too long: its end may be a number."""
    length = len(line)
    while length > 4 and font(_SMALL).getlength(shorten(line, length)) > width:
        length -= 1
    return shorten(line, length)
