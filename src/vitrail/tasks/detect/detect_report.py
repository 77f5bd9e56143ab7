"""What the report of a run shows of detection."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.contract import DetectionData
from vitrail.data.dense.opening import open_detection
from vitrail.data.dense.palette import make_colours
from vitrail.data.dense.samples import ObjectSamples
from vitrail.pages.bars import BarRow, draw_bars
from vitrail.pages.frame import PageSection
from vitrail.pages.matrix import draw_matrix
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.tables import SortedColumn, render_sortable_table
from vitrail.pages.words import text
from vitrail.storage import read_json_object
from vitrail.tasks.contract import RunReader
from vitrail.tasks.detect.drawing import draw_objects
from vitrail.tasks.detect.evaluator import CLASSES_FILE, CONFUSION_FILE, SURE, WORST_FILE
from vitrail.tasks.detect.found_objects import known_objects
from vitrail.tasks.detect.settings import DetectRecipe
from vitrail.tasks.images.dense_task import first_samples

_MAX_CLASSES = 30  # of the matrix
_NUM_VIEWS = 8  # that training saw
_LARGEST_SIDE = 320  # pixels of such a picture
_NOTHING = "nothing"  # the row of answers without an object, and the column of objects that were missed


def detection_sections(run: RunReader) -> Iterator[PageSection]:
    """The worst pictures beside the truth, a bar for each class, what is taken for what, and what training saw."""
    content = run.read(WORST_FILE, Path.read_bytes, b"")
    if content:
        caption = (
            "Images of val with the most objects missed or invented: the truth, and to the right of it what was found "
            f"with a probability of at least {SURE:.0%}."
        )
        picture = render_image(embed_image(content, kind="jpeg"))
        yield PageSection("Worst pictures", render_figure(picture, text(caption), is_wide=True), anchor="worst")
    scores: dict[str, Any] = run.read(CLASSES_FILE, _read, {})
    if "classes" in scores and "box" in scores:
        yield _class_section(scores)
    confusion: dict[str, Any] = run.read(CONFUSION_FILE, _read_confusion, {})
    if confusion and np.any(confusion["counts"]):
        yield _confusion_section(np.array(confusion["counts"]), confusion["classes"])
    yield from _training_section(run)


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path, remedy="evaluate the run again")


def _read_confusion(path: Path) -> dict[str, Any]:
    content = _read(path)
    if np.array(content["counts"]).shape != (len(content["classes"]) + 1,) * 2:
        raise ValueError("its counts are not those of its classes")
    return content


def _class_section(scores: dict[str, Any]) -> PageSection:
    kinds = [kind for kind in ("box", "mask") if kind in scores]
    of_classes = zip(scores["classes"], *(scores[kind] for kind in kinds), strict=True)
    known = [(name, values) for name, *values in of_classes if all(value is not None for value in values)]
    rows = [
        BarRow(str(name), values, " / ".join(f"{value:.1f}" for value in values))
        for name, values in sorted(known, key=lambda row: -row[1][0])
    ]
    title = "Average precision by class" + (", boxes and masks" if len(kinds) > 1 else "")
    missing = len(scores["classes"]) - len(known)
    more = f'<p class="more">{missing} classes have no object in val</p>' if missing else ""
    return PageSection(title, draw_bars(rows, most=100.0, noun="classes") + more, anchor="classes")


def _confusion_section(counts: np.ndarray, classes: list[str]) -> PageSection:
    """A table of each class, and the matrix; of many classes it shows those with the most mistakes."""
    number = len(classes)
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    involved = (wrong.sum(axis=0) + wrong.sum(axis=1))[:number]
    seen = [place for place in range(number) if counts[place].sum() or counts[:, place].sum()]
    shown = sorted(sorted(seen, key=lambda place: -int(involved[place]))[:_MAX_CLASSES])
    places = [*shown, number]
    matrix = counts[np.ix_(places, places)]
    names = [*(classes[place] for place in shown), _NOTHING]
    answers, left = names, len(seen) - len(shown)
    others = counts[places].sum(axis=1) - matrix.sum(axis=1)
    if others.any():
        matrix, answers = np.column_stack([matrix, others]), [*names, "any other"]
    told = (
        f"Answers of at least {SURE:.0%} whose box overlaps that of an object by half (IoU 0.5). Rows are the true "
        f'classes, columns the answers: the column "{_NOTHING}" has the objects that were missed, the row "{_NOTHING}" '
        "answers where there is no object."
    )
    more = f" Shown are the {len(shown)} classes with the most mistakes; {left} others are left out." if left else ""
    return PageSection(
        "Taken for, missed and invented",
        f"<p>{text(told + more)}</p>"
        + draw_matrix(matrix.tolist(), names=names, answers=answers, noun="object")
        + _tally(counts, [classes[place] for place in seen], seen),
        anchor="confusion",
    )


def _tally(counts: np.ndarray, names: list[str], places: list[int]) -> str:
    """What became of the objects of each class, and how many answers of it have no object."""
    last = len(counts) - 1
    rows = [
        (
            name,
            int(counts[place].sum()),
            int(counts[place, place]),
            int(counts[place, :last].sum() - counts[place, place]),
            int(counts[place, last]),
            int(counts[last, place]),
        )
        for name, place in zip(names, places, strict=True)
    ]
    columns = [
        SortedColumn("class"),
        SortedColumn("objects", is_falling=True),
        SortedColumn("found", is_falling=True),
        SortedColumn("mistaken", is_falling=True),
        SortedColumn("missed", is_falling=True),
        SortedColumn("invented", is_falling=True),
    ]
    return render_sortable_table(rows, columns=columns, name="confusion-table", sorted_by=4)


def _training_section(run: RunReader) -> Iterator[PageSection]:
    """The first images of the first step with their objects; nothing where the data is not there any more."""
    recipe = run.stage_recipe
    if not isinstance(recipe, DetectRecipe):
        return
    try:
        data = open_detection(recipe.data)
        figures = [render_figure(render_image(address), "") for address in _draw_views(recipe, data, stage=run.stage)]
    except (ValueError, OSError, BrokenImageError):  # whatever has become of the data, there is a report
        return
    told = "<p>The first images of the first step with the objects that are left in them; a crowd is not learnt.</p>"
    yield PageSection(
        "What training saw", f'{told}<div class="pictures large">{"".join(figures)}</div>', anchor="batch"
    )


def _draw_views(recipe: DetectRecipe, data: DetectionData, *, stage: int) -> Iterator[str]:
    """Addresses of pictures, by the draws of the run."""
    maker = ObjectSamples(recipe.augmentation.build())
    colours = make_colours(len(data.classes))
    for made in first_samples(maker, data.train, recipe=recipe, stage=stage, count=_NUM_VIEWS):
        image = Image.fromarray(np.ascontiguousarray(made.pixels.permute(1, 2, 0).numpy()))
        objects = known_objects(made.objects)
        picture = draw_objects(image, objects, classes=data.classes, colours=colours, longest=_LARGEST_SIDE)
        content = io.BytesIO()
        picture.save(content, "jpeg", quality=88)
        yield embed_image(content.getvalue())
