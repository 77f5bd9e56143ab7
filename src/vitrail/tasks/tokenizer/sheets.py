"""Rows of small pictures in one file, which an evaluation leaves and the report shows."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.models.contract import Preprocessing
from vitrail.pages.frame import PageSection
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.words import text
from vitrail.storage import write_whole
from vitrail.tasks.contract import RunReader

_GAP = 4  # pixels between pictures
_SMALLEST_SIDE = 96  # pixels of a picture in the sheet: smaller ones are enlarged, without blurring
NUM_PICTURES = 8  # images of a sheet


def to_pixels(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalised images [batch, 3, height, width] as pixels of 0 ... 1."""
    mean, std = (images.new_tensor(value).view(-1, 1, 1) for value in (preprocessing.mean, preprocessing.std))
    return (images.float() * std + mean).clamp(0.0, 1.0)


def write_sheet(path: Path, rows: Sequence[Tensor]) -> None:
    """Write rows of pictures, each [number, 3, height, width] of 0 ... 1 and all of one size, one below the other."""
    height, width = rows[0].shape[-2:]
    factor = max(1, -(-_SMALLEST_SIDE // min(height, width)))
    across, down = width * factor + _GAP, height * factor + _GAP
    sheet = np.full((down * len(rows) - _GAP, across * len(rows[0]) - _GAP, 3), 255, dtype=np.uint8)
    for place, row in enumerate(rows):
        pictures = (row * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        for number, picture in enumerate(pictures):
            large = picture.repeat(factor, axis=0).repeat(factor, axis=1)
            top, left = place * down, number * across
            sheet[top : top + large.shape[0], left : left + large.shape[1]] = large
    write_whole(path, lambda file: Image.fromarray(sheet).save(file, "png"))


def sheet_section(run: RunReader, name: str, *, title: str, caption: str, anchor: str) -> Iterator[PageSection]:
    """The sheet of that name in a run's folder, where there is one."""
    content = run.read(name, Path.read_bytes, b"")
    if content:
        picture = render_image(embed_image(content, kind="png"))
        yield PageSection(title, render_figure(picture, text(caption), is_wide=True), anchor=anchor)
