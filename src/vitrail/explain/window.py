"""`draw_window`: a photo as a stained-glass window, what the model saw of it, its patches, and one map of them."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.data.geometry import Crop
from vitrail.explain.canvas import INK, PAPER, Rectangle, colour, font, line_height, write
from vitrail.explain.drawing import as_picture, find_seen, name_classes, percent
from vitrail.explain.maps import AttentionMaps

_LEAD = (24, 24, 28)  # between the panes
_SIDE = 448  # pixels of the longer side of each panel
_GAP, _TEXT = 24, 20
_STRENGTH = (0.35, 0.8)  # of the colours over the panes, for the least and the greatest value


def draw_window(
    maps: AttentionMaps,
    image: Image.Image | Tensor | np.ndarray,
    *,
    crop: Crop | None = None,
    class_names: Sequence[str] | None = None,
) -> Image.Image:
    """One row for one image: what the model saw, its patches, and the overview of the first of its maps over them."""
    picture = as_picture(image)
    seen = Rectangle(0, 0, picture.height, picture.width) if crop is None else find_seen(crop)
    part = picture.crop(seen.edges)
    values = maps.overview()[0, 0].clamp(min=0)
    rows, columns = values.shape
    pane = max(4, _SIDE // max(rows, columns))
    size = (columns * pane, rows * pane)
    part = part.resize(size, Image.Resampling.LANCZOS)
    panels = [part, _lead(part, pane), _lead(_tint(part, values), pane)]
    answers = [f"{name}  {percent(share)}" for name, share in name_classes(maps.probabilities[0], class_names)]
    text = "   ".join(answers)
    below = line_height(_TEXT) + _GAP // 2 if text else 0
    width = len(panels) * size[0] + (len(panels) - 1) * _GAP
    sheet = Image.new("RGB", (width, size[1] + below), PAPER)
    for number, panel in enumerate(panels):
        sheet.paste(panel, (number * (size[0] + _GAP), 0))
    if text:
        left = max(0, round((width - font(_TEXT).getlength(text)) / 2))
        write(ImageDraw.Draw(sheet), (left, size[1] + _GAP // 2), [text], size=_TEXT, ink=INK)
    return sheet


def _tint(part: Image.Image, values: Tensor) -> Image.Image:
    """The picture in the colours of a map, a pane at a time."""
    width, height = part.size
    low, high = _STRENGTH
    top = float(values.max()) or 1.0
    levels = (255 * (low + (high - low) * values.float().cpu() / top)).round().byte().numpy()
    strength = Image.fromarray(levels).resize((width, height), Image.Resampling.NEAREST)
    grey = part.convert("L").convert("RGB")
    return Image.composite(colour(values, size=(height, width)), grey, strength)


def _lead(part: Image.Image, pane: int) -> Image.Image:
    """The picture cut into panes, with lead between them."""
    leaded = part.copy()
    draw = ImageDraw.Draw(leaded)
    thickness = max(1, pane // 12)
    for across in range(0, part.width + 1, pane):
        draw.rectangle((across - thickness, 0, across + thickness - 1, part.height), fill=_LEAD)
    for down in range(0, part.height + 1, pane):
        draw.rectangle((0, down - thickness, part.width, down + thickness - 1), fill=_LEAD)
    return leaded
