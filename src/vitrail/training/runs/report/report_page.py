"""The page of a run: what every run has to tell, and what its task adds."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitrail.pages.frame import Page, PageSection, Verdict, render_page
from vitrail.pages.tables import render_more, render_table
from vitrail.pages.words import Html, count, text
from vitrail.storage import write_text
from vitrail.training.runs.report.curves import course_section
from vitrail.training.runs.report.metrics_table import write_metrics_table
from vitrail.training.runs.report.outcome import Outcome, describe_epochs, describe_seconds, measure_outcome
from vitrail.training.runs.report.run_record import RunRecord, number, read_run
from vitrail.training.runs.report.summary import title_of

_MAX_QUARANTINED = 100


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, of whatever is in it, and give its path; beside it `metrics.csv`."""
    run = read_run(folder)
    if run.train or run.evaluations:
        write_metrics_table(run)
    page = render_page(_make_page(run))
    path = folder / "report.html"
    write_text(path, page, errors="backslashreplace")
    return path


def _make_page(run: RunRecord) -> Page:
    outcome = measure_outcome(run)
    title = title_of(run)
    verb = "vitrail pretrain" if run.recipe and not run.recipe.needs_labels else "vitrail train"
    return Page(
        title=title,
        kicker=f"{verb} · {run.recipe.name}" if run.recipe else verb,
        window_title=f"Run: {title}",
        verdict=Verdict(outcome.verdict, "good" if outcome.is_complete else "look"),
        cards=_make_cards(run, outcome),
        sections=[course_section(run, outcome), *run.task.sections(run), *_record_sections(run)],
    )


def _make_cards(run: RunRecord, outcome: Outcome) -> list[tuple[str, str]]:
    first, *others = run.measures
    measured = [
        (first, outcome.last, f"{first.label}, last"),
        *([(first, outcome.best, f"{first.label}, best (epoch {outcome.epoch_of_best:.4g})")] if first.is_quality else []),
        *((measure, outcome.last, f"{measure.label}, last") for measure in others if measure.is_headline),
    ]
    cards = [
        *((number(line, measure.key), measure.brief(number(line, measure.key)), what) for measure, line, what in measured),
        (outcome.epochs, describe_epochs(outcome).removesuffix(" epochs"), "epochs"),
        (outcome.seconds, describe_seconds(outcome.seconds), "of training"),
        (outcome.speed, f"{outcome.speed:,.0f}", f"{outcome.counted} per second"),
    ]
    return [(shown, what) for value, shown, what in cards if not math.isnan(value)]


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
