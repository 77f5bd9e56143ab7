"""What the report of a run shows of detection."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.pages.bars import BarRow, draw_bars
from vitrail.pages.frame import PageSection
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.words import text
from vitrail.tasks.contract import RunReader
from vitrail.tasks.detect.evaluator import CLASSES_FILE, SURE, WORST_FILE


def detection_sections(run: RunReader) -> Iterator[PageSection]:
    """The worst pictures beside the truth, then a bar for each class."""
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


def _read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is no object")
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
