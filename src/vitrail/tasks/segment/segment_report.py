"""What the report of a run shows of segmentation."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.contract import SegmentationData
from vitrail.data.dense.opening import open_segmentation
from vitrail.data.dense.samples import MaskSamples
from vitrail.evaluation.segmentation import MaskMeter
from vitrail.pages.bars import BarRow, draw_bars
from vitrail.pages.frame import PageSection
from vitrail.pages.matrix import draw_matrix
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.words import text
from vitrail.storage import read_json_object
from vitrail.tasks.contract import RunReader
from vitrail.tasks.images.dense_task import first_samples
from vitrail.tasks.segment.evaluator import COUNTS_FILE, WORST_FILE
from vitrail.tasks.segment.mask_drawing import draw_overlay
from vitrail.tasks.segment.settings import SegmentRecipe

_MAX_CLASSES = 30  # of the matrix
_NUM_CROPS = 8  # that training saw
_LARGEST_SIDE = 256  # pixels of such a picture


def segmentation_sections(run: RunReader) -> Iterator[PageSection]:
    """A bar for each class, what is taken for what, and the worst pictures beside the truth."""
    nothing: dict[str, Any] = {}
    content = run.read(COUNTS_FILE, _read, nothing)
    if content:
        meter = MaskMeter(len(content["classes"]))
        meter.counts += torch.tensor(content["pixels"])
        if bool(meter.counts.any()):  # else no pixel that was measured has a label
            yield _class_section(meter, content["classes"])
            yield PageSection("Confusion", _draw_confusion(meter.counts, content["classes"]), anchor="confusion")
    sheet = run.read(WORST_FILE, Path.read_bytes, b"")
    if sheet:
        caption = "Images of val with the lowest mean intersection over union: the image, the truth, the answer."
        picture = render_figure(render_image(embed_image(sheet, kind="png")), text(caption), is_wide=True)
        yield PageSection("Worst pictures", _draw_legend(content) + picture, anchor="worst")
    yield from _training_section(run)


def _draw_legend(content: Mapping[str, Any]) -> str:
    """The classes beside their colours."""
    box = "display:inline-block;width:0.9em;height:0.9em;margin:0 0.3em 0 1em;vertical-align:-0.1em"
    pairs = zip(content.get("classes", ()), content.get("colours", ()), strict=True)
    marks = (
        f'<span style="{box};background:rgb({",".join(str(int(part)) for part in colour)})"></span>{text(name)}'
        for name, colour in pairs
    )
    return f'<p class="more">{"".join(marks)}</p>'


def _training_section(run: RunReader) -> Iterator[PageSection]:
    """The first crops of the first step with their masks; nothing where the data is not there any more."""
    recipe = run.stage_recipe
    if not isinstance(recipe, SegmentRecipe):
        return
    try:
        data = open_segmentation(recipe.data)
        figures = [render_figure(render_image(address), "") for address in _draw_crops(recipe, data, stage=run.stage)]
    except (ValueError, OSError, BrokenImageError):  # whatever has become of the data, there is a report
        return
    told = "<p>The first crops of the first step with their masks; pixels without a colour are not learnt from.</p>"
    yield PageSection("What training saw", f'{told}<div class="pictures even">{"".join(figures)}</div>', anchor="batch")


def _draw_crops(recipe: SegmentRecipe, data: SegmentationData, *, stage: int) -> Iterator[str]:
    """Addresses of pictures, by the draws of the run."""
    maker = MaskSamples(recipe.augmentation.build(image_size=recipe.image_size))
    for made in first_samples(maker, data.train, recipe=recipe, stage=stage, count=_NUM_CROPS):
        picture = draw_overlay(made.pixels.numpy(), made.mask, data.colours)
        picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
        content = io.BytesIO()
        picture.save(content, "jpeg", quality=88)
        yield embed_image(content.getvalue())


def _read(path: Path) -> dict[str, Any]:
    content = read_json_object(path, remedy="evaluate again")
    number = len(content["classes"])
    if len(content["pixels"]) != number or any(len(row) != number for row in content["pixels"]):
        raise ValueError("its counts are not those of its classes")
    return content


def _class_section(meter: MaskMeter, classes: list[str]) -> PageSection:
    rows = [row for row in meter.rows(classes) if row["iou"] is not None]
    num_pixels = max(1, int(meter.counts.sum()))
    bars = [
        BarRow(
            str(row["class"]),
            (row["iou"],),
            f"{row['iou']:.1f} %",
            title=f"{row['pixels']:,} pixels, {row['pixels'] / num_pixels:.1%} of all",
        )
        for row in sorted(rows, key=lambda row: -row["iou"])
    ]
    missing = len(classes) - len(rows)
    more = f'<p class="more">{missing} classes are neither in val nor answered.</p>' if missing else ""
    told = "<p>Pixels that are of a class and are said to be, over those that are one or the other.</p>"
    return PageSection(
        "Intersection over union by class",
        told + draw_bars(bars, most=100.0, noun="classes") + more,
        anchor="classes",
    )


def _draw_confusion(counts: Tensor, classes: list[str]) -> str:
    """Of many classes those with the most wrong pixels; all others are one column."""
    wrong = counts.clone().fill_diagonal_(0)
    involved = wrong.sum(dim=0) + wrong.sum(dim=1)
    seen = [place for place in range(len(classes)) if int(counts[place].sum())]
    shown = sorted(sorted(seen, key=lambda place: -int(involved[place]))[:_MAX_CLASSES])
    table = counts[shown][:, shown]
    others = counts[shown].sum(dim=1) - table.sum(dim=1)
    names = [classes[place] for place in shown]
    answers = names
    if bool(others.any()):
        table, answers = torch.cat([table, others[:, None]], dim=1), [*names, "any other"]
    told = "Rows are the true classes, columns the answers, in percent of the pixels of the row."
    left = len(seen) - len(shown)
    more = (
        f" Shown are the {len(shown)} classes with the most wrong pixels; {left} others are left out." if left else ""
    )
    return (
        draw_matrix(table.tolist(), names=names, answers=answers, noun="pixel", is_share=True)
        + f'<p class="more">{told}{more}</p>'
    )
