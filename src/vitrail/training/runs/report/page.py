"""The page: every part of a run's report in its order, in one HTML file."""

import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitrail.data.contract import Dataset
from vitrail.data.page import render_cards, render_page, shared_style, text
from vitrail.storage import write_text
from vitrail.training.runs.report.answers import calibrate, count_mistakes
from vitrail.training.runs.report.classes import draw_class_accuracy, draw_reliability, list_pairs
from vitrail.training.runs.report.curves import draw_curves
from vitrail.training.runs.report.matrix import draw_matrix
from vitrail.training.runs.report.outcome import (
    Outcome,
    describe_against,
    describe_epochs,
    describe_seconds,
    measure_outcome,
)
from vitrail.training.runs.report.pictures import show_most_wrong
from vitrail.training.runs.report.record import Predictions, RunRecord, number, read_run
from vitrail.training.runs.report.summary import title_of
from vitrail.training.runs.report.words import count

_MAX_QUARANTINED = 100


def write_report(folder: Path, *, val: Dataset | None = None) -> Path:
    """Write `report.html` into a run folder, of whatever is in it, and give its path.

    The pictures are read from `val`, or from the data that the recipe names.
    """
    run = read_run(folder)
    page = _render(run, val=val)
    path = folder / "report.html"
    write_text(path, page, errors="backslashreplace")
    return path


def _render(run: RunRecord, *, val: Dataset | None) -> str:
    outcome = measure_outcome(run)
    title = title_of(run)
    own_style = files("vitrail.training.runs.report").joinpath("report.css").read_text(encoding="utf-8")
    style = f"{shared_style()}\n{own_style}"
    recipe = f" · {text(run.recipe.name)}" if run.recipe else ""
    body = f"""<header>
<p class="kicker">vitrail train{recipe}</p>
<h1>{text(title)}</h1>
<p class="verdict {"fit" if outcome.is_complete else "open"}">{text(outcome.verdict)}</p>
{_render_cards(outcome)}
</header>
<main>
{"".join(_render_sections(run, outcome, val=val))}
</main>"""
    return render_page(f"Run: {title}", body, style=style)


def _render_cards(outcome: Outcome) -> str:
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
    return render_cards((form.format(value), what) for value, form, what in cards if not math.isnan(value))


def _render_sections(run: RunRecord, outcome: Outcome, *, val: Dataset | None) -> Iterator[str]:
    against = describe_against(run)
    compared = f"<p>{text(against)}</p>" if against else ""
    yield _section("Course", f"{compared}<p>{text(outcome.data_verdict)}</p>{draw_curves(run)}")
    if run.predictions is not None:
        yield from _render_answers(run, run.predictions, val=val)
    if run.quarantine:
        yield _section("Broken files", _list_quarantine(run))
    if run.unreadable:
        yield _section("Not readable", "".join(f"<p>{text(what)}</p>" for what in run.unreadable))
    if run.recipe_text:
        lines = "\n".join(text(line) for line in run.recipe_text.splitlines())
        yield _section("Recipe", f"<details><summary>All settings</summary><pre>{lines}</pre></details>")
    if run.plan:
        rows = (f"<tr><td>{text(key)}</td><td>{text(value)}</td></tr>" for key, value in _flatten(run.plan))
        yield _section("Environment", f'<table class="facts">{"".join(rows)}</table>')


def _section(title: str, body: str) -> str:
    return f"<section><h2>{text(title)}</h2>{body}</section>\n"


def _render_answers(run: RunRecord, predictions: Predictions, *, val: Dataset | None) -> Iterator[str]:
    mistakes = count_mistakes(predictions, num_classes=len(run.classes.names))
    calibration = calibrate(predictions)
    total = f"{mistakes.num_mistakes:,} of {count(len(predictions.targets), 'image')} of val"
    yield _section(
        "Most wrong pictures",
        f"<p>Of the mistakes ({total}) those the model was surest of: its "
        '<span class="answer">answer</span> and the <span class="truth">label</span>, with the probabilities it gave '
        "them. Look for wrong labels among them.</p>" + show_most_wrong(run, predictions, val=val),
    )
    yield _section("Confusion", draw_matrix(mistakes, run.classes))
    pairs, trust = list_pairs(mistakes, run.classes), draw_reliability(calibration)
    yield (
        f'<div class="pair">{_section("Most confused pairs", pairs)}'
        f"{_section('Calibration', f'<p>{text(calibration.verdict)}</p>{trust}')}</div>"
    )
    yield _section("Accuracy by class", draw_class_accuracy(mistakes, run.classes))


def _list_quarantine(run: RunRecord) -> str:
    rows = "".join(
        f"<tr><td><code>{text(problem.path)}</code></td><td>{text(problem.split)}</td>"
        f'<td class="detail">{text(problem.detail or problem.problem)}</td></tr>'
        for problem in run.quarantine[:_MAX_QUARANTINED]
    )
    rest = len(run.quarantine) - _MAX_QUARANTINED
    more = f'<p class="more">and {rest:,} more: see quarantine.csv</p>' if rest > 0 else ""
    said = f"{count(len(run.quarantine), 'file')} could not be read; other images were taken in their place."
    return f'<p>{text(said)}</p><table class="lines">{rows}</table>{more}'


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else value
