"""Ranked lists as a picture: each query and what was found for it, framed by how right it is (thesis figure 2.6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

RIGHT, COARSE, WRONG = "right", "coarse", "wrong"
_COLOURS = {RIGHT: "#22a34a", COARSE: "#f08c00", WRONG: "#8a8f98"}  # green, orange, grey
_SIDE, _FRAME, _GAP, _LINE = 84, 5, 8, 16  # pixels: of a picture, its frame, between pictures, of a caption
_INK, _PAPER = "#20242b", "#ffffff"


@dataclass(frozen=True, eq=False)
class RankedList:
    """A query and the pictures found for it, best first."""

    query: Image.Image
    caption: str
    found: Sequence[tuple[Image.Image | None, str]]  # each with RIGHT, COARSE or WRONG; None: there is no picture


def judge(labels: tuple[object, object], found: tuple[object, object]) -> str:
    """How right a result is, by its fine and coarse label and those of the query; None is no label."""
    (fine, coarse), (found_fine, found_coarse) = labels, found
    if fine is not None and fine == found_fine:
        return RIGHT
    return COARSE if coarse is not None and coarse == found_coarse else WRONG


def draw_ranked_lists(lists: Sequence[RankedList]) -> Image.Image:
    """One row a query: green is the right fine class, orange only the right coarse one, grey neither."""
    if not lists:
        raise ValueError("there is no ranked list to draw")
    cell = _SIDE + 2 * _FRAME
    columns = 1 + max(len(row.found) for row in lists)
    height = cell + _LINE + _GAP
    sheet = Image.new("RGB", (columns * (cell + _GAP) + 3 * _GAP, len(lists) * height + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=12)
    for number, row in enumerate(lists):
        top = _GAP + number * height
        _paste(sheet, row.query, left=_GAP, top=top, frame=None)
        draw.text((_GAP, top + cell + 1), row.caption, fill=_INK, font=font)
        for place, (picture, kind) in enumerate(row.found, start=1):
            _paste(sheet, picture, left=2 * _GAP + place * (cell + _GAP), top=top, frame=_COLOURS[kind])
    return sheet


def check_picture(path: Path) -> None:
    """Refuse a place that no picture can be written to, before the work begins."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"{path} is no name of a picture: let it end with .png")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is no folder: make it first, or write the picture elsewhere")


def save_ranked_lists(lists: Sequence[RankedList], path: Path) -> Path:
    """Write the picture; its ending says the format."""
    try:
        draw_ranked_lists(lists).save(path)
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
