"""A few lines that say how a run went, for the terminal."""

import math
from pathlib import Path

from vitrail.pages.words import count, visible
from vitrail.training.runs.report.outcome import Outcome, describe_against, describe_seconds, measure_outcome
from vitrail.training.runs.report.run_record import RunRecord, number, read_run


def title_of(run: RunRecord) -> str:
    """What was trained on what."""
    if run.recipe is None:
        return run.folder.resolve().name
    data = run.recipe.data.spec
    return (
        f"{run.recipe.model.name} on {data.rstrip('/').rpartition('/')[2] or data}" if data else run.recipe.model.name
    )


def headlines(run: RunRecord, outcome: Outcome) -> list[str]:
    """What the last evaluation says beside the first measure, such as "97.0 % coarse top-1"."""
    found = [(measure, number(outcome.last, measure.key)) for measure in run.measures[1:] if measure.is_headline]
    return [f"{measure.brief(value)} {measure.label}" for measure, value in found if not math.isnan(value)]


def summarize(folder: Path) -> str:
    """How a run went, in a few lines."""
    run = read_run(folder)
    outcome = measure_outcome(run)
    lines = [f"{title_of(run)}. {outcome.verdict}"]
    speed = outcome.speed
    details = [
        *headlines(run, outcome),
        "" if math.isnan(outcome.seconds) else f"{describe_seconds(outcome.seconds)} of training",
        "" if math.isnan(speed) else f"{speed:,.0f} {outcome.counted}/s",
    ]
    lines.append(", ".join(filter(None, details)))
    if not math.isnan(outcome.data_wait):
        lines.append(outcome.data_verdict)
    lines += run.task.remarks(run)
    lines.append(describe_against(run) or "")
    skipped = number(run.train[-1] if run.train else None, "num_skipped")
    if not math.isnan(skipped):
        lines.append(f"{count(int(skipped), 'step')} skipped because loss or gradients were not finite.")
    if run.quarantine:
        lines.append(f"{count(len(run.quarantine), 'broken file')} replaced, listed in {folder / 'quarantine.csv'}.")
    return "\n".join(visible(line) for line in lines if line)
