"""What the report of a run without labels shows beside its curves: neighbours, and where the model looks."""

import io
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vitrail.pages.frame import PageSection
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.words import text
from vitrail.tasks.contract import RunReader
from vitrail.tasks.unlabelled.feature_pictures import FOLDER, IMAGES_FILE, NEIGHBOURS_FILE, find_maps

_LARGEST = 4_000_000  # bytes of a picture; ours are far smaller
_MOST_PIXELS = 2_000_000  # of a column
_GAP, _LINE = 6, 18  # pixels between columns, and of their titles


def feature_sections(run: RunReader) -> Iterator[PageSection]:
    """The pictures that the evaluations left; nothing where they left none."""
    if neighbours := run.read(f"{FOLDER}/{NEIGHBOURS_FILE}", _read_picture, b""):
        told = (
            "Images of val, each beside the training images with the nearest features, by the last evaluation. "
            "Where there are labels, a green frame is an image of the same class."
        )
        yield PageSection("Nearest neighbours", _render(told, neighbours), anchor="neighbours")
    if maps := run.read(FOLDER, _draw_course, b""):
        told = (
            "How strongly the class token looks at each patch, from the least (blue) to the most (yellow), over the "
            "epochs; of a model without such a token, how much each patch is like the whole image."
        )
        yield PageSection("Where it looks", _render(told, maps), anchor="attention")


def _render(told: str, picture: bytes) -> str:
    return f"<p>{text(told)}</p>{render_figure(render_image(embed_image(picture)), '', is_wide=True)}"


def _read_picture(path: Path) -> bytes:
    """A picture of ours; one that is far too large is none."""
    return path.read_bytes() if path.stat().st_size < _LARGEST else b""


def _open_column(path: Path) -> Image.Image:
    """One of the columns that evaluations leave."""
    try:
        picture = Image.open(io.BytesIO(_read_picture(path)))
    except Image.DecompressionBombError:
        picture = None
    if picture is None or picture.width * picture.height > _MOST_PIXELS:
        raise ValueError(f"{path.name} is too large for a column of maps")
    return picture


def _draw_course(folder: Path) -> bytes:
    """The images and their maps over the epochs, a column each, as one JPEG; nothing where there are no maps."""
    maps = find_maps(folder)
    if not maps:
        return b""
    is_staged = len({stage for (stage, _), _ in maps}) > 1
    columns = [("", folder / IMAGES_FILE)] if (folder / IMAGES_FILE).is_file() else []
    for (stage, epoch), path in maps:
        columns.append((f"{f'stage {stage + 1}, ' if is_staged else ''}epoch {epoch:.4g}", path))
    pictures = [(title, _open_column(path)) for title, path in columns]
    width = sum(picture.width + _GAP for _, picture in pictures) - _GAP
    sheet = Image.new("RGB", (width, _LINE + max(picture.height for _, picture in pictures)), "#ffffff")
    draw, left = ImageDraw.Draw(sheet), 0
    for title, picture in pictures:
        draw.text((left, 1), title, fill="#20242b", font=ImageFont.load_default(size=12))
        sheet.paste(picture, (left, _LINE))
        left += picture.width + _GAP
    content = io.BytesIO()
    sheet.save(content, "jpeg", quality=88)
    return content.getvalue()
