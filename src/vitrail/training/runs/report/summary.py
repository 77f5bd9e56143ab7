"""A few lines that say how a run went, for the terminal."""

import math
from pathlib import Path

from vitrail.pages.words import count, visible
from vitrail.training.runs.report.answers import count_mistakes
from vitrail.training.runs.report.outcome import describe_against, describe_seconds, measure_outcome
from vitrail.training.runs.report.record import RunRecord, number, read_run

_NUM_PAIRS = 3


def title_of(run: RunRecord) -> str:
    """What was trained on what."""
    if run.recipe is None:
        return run.folder.resolve().name
    data = run.recipe.data.spec
    return (
        f"{run.recipe.model.name} on {data.rstrip('/').rpartition('/')[2] or data}" if data else run.recipe.model.name
    )


def summarize(folder: Path) -> str:
    """How a run went, in a few lines."""
    run = read_run(folder)
    outcome = measure_outcome(run)
    lines = [f"{title_of(run)}. {outcome.verdict}"]
    coarse, speed = number(outcome.last, "coarse_top1"), outcome.images_per_second
    details = [
        "" if math.isnan(coarse) else f"{coarse:.1f} % coarse top-1",
        "" if math.isnan(outcome.seconds) else f"{describe_seconds(outcome.seconds)} of training",
        "" if math.isnan(speed) else f"{speed:,.0f} images/s",
    ]
    lines.append(", ".join(filter(None, details)))
    if not math.isnan(outcome.data_wait):
        lines.append(outcome.data_verdict)
    if run.predictions is not None:
        pairs = count_mistakes(run.predictions, num_classes=len(run.classes.names)).pairs[:_NUM_PAIRS]
        named = (
            f"{run.classes.name(pair.target)} for {run.classes.name(pair.predicted)} ({pair.num_images})"
            for pair in pairs
        )
        lines.append(f"Most often mistaken: {', '.join(named)}." if pairs else "Not one mistake on val.")
    lines.append(describe_against(run) or "")
    skipped = number(run.train[-1] if run.train else None, "num_skipped")
    if not math.isnan(skipped):
        lines.append(f"{count(int(skipped), 'step')} skipped because loss or gradients were not finite.")
    if run.quarantine:
        lines.append(f"{count(len(run.quarantine), 'broken file')} replaced, listed in {folder / 'quarantine.csv'}.")
    return "\n".join(visible(line) for line in lines if line)
