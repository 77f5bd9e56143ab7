"""The layout of a picture: large panels side by side, text below them, then rows of small maps."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.explain.canvas import INK, PAPER, QUIET, Rectangle, line_height, overlay, show_kept, wrap, write

_MOST_COLUMNS = 8  # small maps beside each other
_LEAST_TEXT = 13  # pixels
_TEXT_SHARE = 1 / 85  # of the sheet's width: readable also where the whole sheet is fitted into a window
_SMALL_SHARE = 1 / 4  # width of a small map, over that of a large one
_LEAST_SMALL = 112  # pixels


@dataclass(frozen=True, eq=False)
class MapRow:
    """Small maps that belong together."""

    title: str
    items: Sequence[tuple[str, Tensor]]  # what each is, and its values, or a mask of the patches that are kept


class Sheet:
    """All about one image, of which the model saw a part."""

    def __init__(self, image: Image.Image, seen: Rectangle) -> None:
        self.image, self.seen = image, seen
        self.panels: list[tuple[str, Image.Image]] = []  # titles, and pictures as large as the image
        self.text: list[str] = []
        self.rows: list[MapRow] = []

    @property
    def text_size(self) -> int:
        """The size of the titles' letters, in pixels."""
        return max(_LEAST_TEXT, round(len(self.panels) * self.image.width * _TEXT_SHARE))

    def draw(self) -> Image.Image:
        """Draw everything on one sheet."""
        width, height = self.image.size
        size, answer_size = self.text_size, round(self.text_size * 1.2)
        margin = size
        sheet_width = margin + len(self.panels) * (width + margin)
        inner = sheet_width - 2 * margin
        titles = [wrap(title, size=size, width=width) for title, _ in self.panels]
        title_height = max(map(len, titles)) * line_height(size)
        text = [line for answer in self.text for line in wrap(answer, size=answer_size, width=inner)]
        strips = [self._draw_row(row, inner) for row in self.rows]
        below = len(text) * line_height(answer_size) + sum(strip.height + margin // 2 for strip in strips)
        sheet = Image.new("RGB", (sheet_width, 2 * margin + margin // 2 + title_height + height + below), PAPER)
        draw = ImageDraw.Draw(sheet)
        for number, ((_, panel), title) in enumerate(zip(self.panels, titles, strict=True)):
            left = margin + number * (width + margin)
            write(draw, (left, margin // 2), title, size=size, ink=QUIET)
            sheet.paste(panel, (left, margin // 2 + title_height))
        top = margin + title_height + height
        top = write(draw, (margin, top), text, size=answer_size, ink=INK) + margin // 2
        for strip in strips:
            sheet.paste(strip, (margin, top))
            top += strip.height + margin // 2
        return sheet

    def _draw_row(self, row: MapRow, width: int) -> Image.Image:
        """A row as a strip as wide as the panels together; a long one is broken into lines of equal length."""
        size = max(11, round(self.text_size * 0.8))
        gap = max(4, size // 2)
        count = len(row.items)
        columns = -(-count // -(-count // _MOST_COLUMNS))
        fitting = (width - gap * (_MOST_COLUMNS - 1)) // _MOST_COLUMNS
        wanted = max(_LEAST_SMALL, round(self.image.width * _SMALL_SHARE), fitting)
        tile_width = min((width - gap * (columns - 1)) // columns, wanted)
        left, top, right, bottom = self.seen.edges
        tile_height = max(1, round(tile_width * (bottom - top) / (right - left)))
        part = self.image.crop((left, top, right, bottom)).resize((tile_width, tile_height), Image.Resampling.BICUBIC)
        step = tile_height + line_height(size) + gap
        heading = wrap(row.title, size=size, width=width)
        start = len(heading) * line_height(size)
        strip = Image.new("RGB", (width, start + -(-count // columns) * step), PAPER)
        draw = ImageDraw.Draw(strip)
        write(draw, (0, 0), heading, size=size, ink=INK)
        for number, (label, values) in enumerate(row.items):
            place = (number % columns * (tile_width + gap), start + number // columns * step)
            write(draw, place, wrap(label, size=size, width=tile_width)[:1], size=size, ink=QUIET)
            paint = show_kept if values.dtype == torch.bool else overlay
            small = paint(part, values, Rectangle(0, 0, tile_height, tile_width))
            strip.paste(small, (place[0], place[1] + line_height(size)))
        return strip
