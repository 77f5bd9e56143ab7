"""Pictures of objects: masks in colours, boxes and names over the image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitrail.explain.canvas import INK, PAPER, QUIET, font, line_height
from vitrail.storage import write_whole
from vitrail.tasks.detect.coco_measures import decode_mask
from vitrail.tasks.detect.found_objects import FoundObject

_SMALLEST, _LARGEST = 320, 1600  # pixels of the longer side of a picture
_TINT = 0.45  # strength of a mask's colour
_TEXT = 13  # pixels
_GAP = 8  # pixels between pictures


def draw_objects(
    image: Image.Image,
    objects: Sequence[FoundObject],
    *,
    classes: Sequence[str],
    colours: Sequence[tuple[int, int, int]],
    longest: int = _LARGEST,
) -> Image.Image:
    """The image with objects over it, in the colours of their classes; small ones are enlarged, large ones shrunk."""
    side = max(image.size)
    factor = min(max(1.0, _SMALLEST / side), longest / side)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC), dtype=np.float32).copy()
    for one in objects:
        if one.mask is not None:
            mask = Image.fromarray(255 * decode_mask(one.mask)).resize(size, Image.Resampling.BILINEAR)
            inside = np.asarray(mask) > 127
            pixels[inside] += _TINT * (np.array(colours[one.label], dtype=np.float32) - pixels[inside])
    canvas = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    for one in reversed(objects):
        _draw_box(draw, one, name=classes[one.label], colour=colours[one.label], factor=factor, within=canvas.size)
    return canvas


def _draw_box(
    draw: ImageDraw.ImageDraw,
    one: FoundObject,
    *,
    name: str,
    colour: tuple[int, int, int],
    factor: float,
    within: tuple[int, int],
) -> None:
    left, top, right, bottom = (round(value * factor) for value in one.box)
    draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
    text = name if one.score >= 1.0 else f"{name} {one.score:.0%}"
    width, height = font(_TEXT).getlength(text), line_height(_TEXT)
    below = bottom if bottom + height <= within[1] else top
    place = (min(left, max(0, within[0] - round(width) - 4)), top - height if top >= height else below)
    draw.rectangle((*place, place[0] + width + 4, place[1] + height), fill=colour)
    ink = INK if sum(colour) > 380 else PAPER
    draw.text((place[0] + 2, place[1]), text, font=font(_TEXT), fill=ink)


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture as PNG or JPEG, whole or not at all."""
    options = {"quality": 88} if path.suffix == ".jpg" else {}
    write_whole(path, lambda file: picture.save(file, "jpeg" if options else "png", **options))


def draw_pairs(pairs: Sequence[tuple[Image.Image, Image.Image, str]], *, columns: int = 2) -> Image.Image:
    """Truth and answer side by side, with a line below that says which image it is, several such pairs in a row."""
    width = max(one.width + other.width + 3 * _GAP for one, other, _ in pairs)
    rows = [pairs[first : first + columns] for first in range(0, len(pairs), columns)]
    heights = [max(one.height for one, _, _ in row) + line_height(_TEXT) + _GAP for row in rows]
    sheet = Image.new("RGB", (width * min(columns, len(pairs)), sum(heights)), PAPER)
    draw, top = ImageDraw.Draw(sheet), 0
    for row, height in zip(rows, heights, strict=True):
        for place, (one, other, text) in enumerate(row):
            left = place * width
            sheet.paste(one, (left, top))
            sheet.paste(other, (left + one.width + _GAP, top))
            draw.text((left, top + one.height + 2), text, font=font(_TEXT), fill=QUIET)
        top += height
    return sheet
