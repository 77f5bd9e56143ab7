"""The page of a run: what every run has to tell, and what its answers come to."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitrail.data.contract import Dataset
from vitrail.pages.frame import Page, PageSection, Verdict, render_page
from vitrail.pages.tables import render_more, render_table
from vitrail.pages.words import Html, count, text
from vitrail.training.runs.checkpoint import write_whole
from vitrail.training.runs.report.answers import calibrate, count_mistakes
from vitrail.training.runs.report.classes import calibration_section, class_accuracy_section, pairs_section
from vitrail.training.runs.report.curves import course_section
from vitrail.training.runs.report.matrix import confusion_section
from vitrail.training.runs.report.most_wrong import most_wrong_section
from vitrail.training.runs.report.outcome import Outcome, describe_epochs, describe_seconds, measure_outcome
from vitrail.training.runs.report.record import RunRecord, number, read_run
from vitrail.training.runs.report.summary import title_of

_MAX_QUARANTINED = 100


def write_report(folder: Path, *, val: Dataset | None = None) -> Path:
    """Write `report.html` into a run folder, of whatever is in it, and give its path.

    The pictures are read from `val`, or from the data that the recipe names.
    """
    page = render_page(_make_page(read_run(folder), val=val))
    path = folder / "report.html"
    write_whole(path, lambda file: file.write(page.encode("utf-8", "backslashreplace")))
    return path


def _make_page(run: RunRecord, *, val: Dataset | None) -> Page:
    outcome = measure_outcome(run)
    title = title_of(run)
    return Page(
        title=title,
        kicker=f"vitrail train · {run.recipe.name}" if run.recipe else "vitrail train",
        window_title=f"Run: {title}",
        verdict=Verdict(outcome.verdict, "good" if outcome.is_complete else "look"),
        cards=_make_cards(outcome),
        sections=[course_section(run, outcome), *answer_sections(run, val=val), *_record_sections(run)],
    )


def _make_cards(outcome: Outcome) -> list[tuple[str, str]]:
    last, best = outcome.last, outcome.best
    cards = [
        (number(last, "top1"), "{:.1f} %", "top-1, last"),
        (number(best, "top1"), "{:.1f} %", f"top-1, best (epoch {outcome.epoch_of_best:.4g})"),
        (number(last, "coarse_top1"), "{:.1f} %", "coarse top-1, last"),
        (number(last, "top5"), "{:.1f} %", "top-5, last"),
        (outcome.epochs, describe_epochs(outcome).removesuffix(" epochs"), "epochs"),
        (outcome.seconds, describe_seconds(outcome.seconds), "of training"),
        (outcome.images_per_second, "{:,.0f}", "images per second"),
    ]
    return [(form.format(value), what) for value, form, what in cards if not math.isnan(value)]


def answer_sections(run: RunRecord, *, val: Dataset | None) -> Iterator[PageSection]:
    """What the answers of the last evaluation come to; nothing where there are none."""
    if run.predictions is None:
        return
    mistakes = count_mistakes(run.predictions, num_classes=len(run.classes.names))
    yield most_wrong_section(run, run.predictions, val=val)
    yield confusion_section(mistakes, run.classes)
    yield pairs_section(mistakes, run.classes)
    yield calibration_section(calibrate(run.predictions))
    yield class_accuracy_section(mistakes, run.classes)


def _record_sections(run: RunRecord) -> Iterator[PageSection]:
    """What a run of any task leaves: broken files, settings, environment."""
    if run.quarantine:
        yield PageSection("Broken files", _list_quarantine(run), anchor="broken-files")
    if run.unreadable:
        yield PageSection("Not readable", "".join(f"<p>{text(what)}</p>" for what in run.unreadable))
    if run.recipe_text:
        lines = "\n".join(text(line) for line in run.recipe_text.splitlines())
        settings = f"<details><summary>All settings</summary><pre>{lines}</pre></details>"
        yield PageSection("Recipe", settings, anchor="recipe")
    if run.plan:
        facts = ((key, str(value)) for key, value in _flatten(run.plan))
        yield PageSection("Environment", render_table(facts, style="facts"), anchor="environment")


def _list_quarantine(run: RunRecord) -> str:
    rows = (
        (
            Html(f"<code>{text(problem.path)}</code>"),
            problem.split,
            Html(f'<span class="detail">{text(problem.detail or problem.problem)}</span>'),
        )
        for problem in run.quarantine[:_MAX_QUARANTINED]
    )
    said = f"{count(len(run.quarantine), 'file')} could not be read; other images were taken in their place."
    more = render_more(len(run.quarantine) - _MAX_QUARANTINED, where="quarantine.csv")
    return f"<p>{text(said)}</p>{render_table(rows, style='lines')}{more}"


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else value
