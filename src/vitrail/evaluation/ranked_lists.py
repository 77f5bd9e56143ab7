"""Ranked lists as a picture: each query and what was found for it, framed by how right it is (thesis 2.6-2.9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

_RIGHT, _WRONG = "#22a34a", "#8a8f98"  # green at the finest level, grey at none
_COARSE = "#f08c00"  # orange, where there is one coarser level
_COARSER = ("#a4c639", "#f4d03f", _COARSE, "#d9480f", "#a61e4d", "#5f3dc4")  # of several, from fine to coarse
_SIDE, _FRAME, _GAP, _LINE = 84, 5, 8, 16  # pixels: of a picture, its frame, between pictures, of a caption
_INK, _PAPER = "#20242b", "#ffffff"


@dataclass(frozen=True, eq=False)
class RankedList:
    """A query and the pictures found for it, best first."""

    query: Image.Image
    caption: str
    found: Sequence[tuple[Image.Image | None, int | None]]  # pictures, if there are, with what `judge` says of them


def judge(labels: Sequence[object], found: Sequence[object]) -> int | None:
    """The finest level at which a result is right, 0 being the finest of all; None where it is right at none.

    Labels of the query and of the result go from the finest level to the coarsest; None is no label.
    """
    pairs = enumerate(zip(labels, found, strict=True))
    return next((level for level, (own, other) in pairs if own is not None and own == other), None)


def level_colours(count: int) -> list[str]:
    """The colours of frames for results that are right at each of so many levels, from the finest to the coarsest."""
    if count <= 2:
        return [_RIGHT, _COARSE][:count]
    num_coarser = count - 1
    return [_RIGHT, *(_COARSER[(2 * place + 1) * len(_COARSER) // (2 * num_coarser)] for place in range(num_coarser))]


def draw_ranked_lists(lists: Sequence[RankedList], *, levels: Sequence[str] = ("fine", "coarse")) -> Image.Image:
    """One row a query, each result in a frame of the colour of the finest level at which it is right.

    Green is the finest of `levels`, which go from fine to coarse; of two the coarse one is orange. Grey is right at
    none. The names stand below, beside their colours. Without levels nothing is judged, and there are no frames.
    """
    if not lists:
        raise ValueError("there is no ranked list to draw")
    colours: dict[int | None, str] = {**dict(enumerate(level_colours(len(levels)))), None: _WRONG}
    cell = _SIDE + 2 * _FRAME
    columns = 1 + max(len(row.found) for row in lists)
    height = cell + _LINE + _GAP
    legend_top = len(lists) * height + _GAP
    bottom = legend_top + (_LINE + _GAP if levels else 0)
    sheet = Image.new("RGB", (columns * (cell + _GAP) + 3 * _GAP, bottom), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=12)
    for number, row in enumerate(lists):
        top = _GAP + number * height
        _paste(sheet, row.query, left=_GAP, top=top, frame=None)
        draw.text((_GAP, top + cell + 1), row.caption, fill=_INK, font=font)
        for place, (picture, level) in enumerate(row.found, start=1):
            frame = colours[level] if levels else None
            _paste(sheet, picture, left=2 * _GAP + place * (cell + _GAP), top=top, frame=frame)
    if not levels:
        return sheet
    left = _GAP
    for name, colour in zip([*(f"right {level}" for level in levels), "wrong"], colours.values(), strict=True):
        draw.rectangle((left, legend_top + 2, left + 10, legend_top + 12), fill=colour)
        draw.text((left + 16, legend_top), name, fill=_INK, font=font)
        left += 16 + round(draw.textlength(name, font=font)) + 2 * _GAP
    return sheet


def check_picture(path: Path) -> None:
    """Refuse a place that no picture can be written to, before the work begins."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"{path} is no name of a picture: let it end with .png")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is no folder: make it first, or write the picture elsewhere")


def save_ranked_lists(lists: Sequence[RankedList], path: Path, *, levels: Sequence[str] = ("fine", "coarse")) -> Path:
    """Write the picture; its ending says the format."""
    try:
        draw_ranked_lists(lists, levels=levels).save(path)
    except (OSError, KeyError) as error:
        raise ValueError(f"the ranked lists can't be written to {path}: {error}") from None
    return path


def _paste(sheet: Image.Image, picture: Image.Image | None, *, left: int, top: int, frame: str | None) -> None:
    side = _SIDE + 2 * _FRAME
    if frame is not None:
        sheet.paste(frame, (left, top, left + side, top + side))
        sheet.paste(_PAPER, (left + _FRAME, top + _FRAME, left + side - _FRAME, top + side - _FRAME))
    if picture is None:
        return
    scale = _SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    small = picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    sheet.paste(small, (left + (side - size[0]) // 2, top + (side - size[1]) // 2))
