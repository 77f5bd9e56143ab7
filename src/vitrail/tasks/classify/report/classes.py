"""Accuracy by class, pairs that are confused, and how far the probabilities can be trusted."""

from vitrail.pages.axes import Plot, render_svg, scale_across, scale_upward
from vitrail.pages.bars import BarRow, draw_bars, draw_histogram
from vitrail.pages.charts import colour_of
from vitrail.pages.frame import PageSection
from vitrail.pages.tables import render_table
from vitrail.pages.words import Html, count, percent, text
from vitrail.tasks.classify.report.answered import Classes
from vitrail.tasks.classify.report.answers import Calibration, Mistakes

_MAX_PAIRS = 15


def class_accuracy_section(mistakes: Mistakes, classes: Classes) -> PageSection:
    """A bar for each class, the best first."""
    rows = [
        BarRow(
            classes.name(index),
            [mistakes.accuracy[index]],
            f"{mistakes.accuracy[index]:.1f} %",
            f"{mistakes.num_right[index]:,} of {count(int(mistakes.num_images[index]), 'image')}",
        )
        for index in mistakes.seen[::-1].tolist()
    ]
    return PageSection("Accuracy by class", draw_bars(rows, most=100.0, noun="classes"), anchor="classes")


def pairs_section(mistakes: Mistakes, classes: Classes) -> PageSection:
    """The most frequent mistakes."""
    if not mistakes.pairs:
        return PageSection("Most confused pairs", "<p>There is not one mistake.</p>", anchor="pairs", is_narrow=True)
    rows = (
        (
            Html(
                f"<b>{text(classes.name(pair.target))}</b> taken for <b>{text(classes.name(pair.predicted))}</b>"
                f"{_note_coarse(pair.target, pair.predicted, classes)}"
            ),
            f"{pair.num_images:,} of {mistakes.num_images[pair.target]:,}",
            percent(pair.share),
        )
        for pair in mistakes.pairs[:_MAX_PAIRS]
    )
    rest = sum(pair.num_images for pair in mistakes.pairs[_MAX_PAIRS:])
    more = f'<p class="more">and {count(rest, "image")} in other pairs</p>' if rest else ""
    return PageSection("Most confused pairs", render_table(rows, style="tally") + more, anchor="pairs", is_narrow=True)


def _note_coarse(target: int, predicted: int, classes: Classes) -> str:
    """Two classes of one coarse class are the easier to forgive."""
    coarse = classes.coarse(target)
    return f'<span class="tag">both {text(coarse)}</span>' if coarse and coarse == classes.coarse(predicted) else ""


def calibration_section(calibration: Calibration) -> PageSection:
    """Accuracy against confidence: bars on the diagonal are honest; below, how many answers each stands for."""
    counts = calibration.count.tolist()
    edges = [100.0 * place / len(counts) for place in range(len(counts) + 1)]
    amounts = draw_histogram(
        counts,
        edges=edges,
        label="confidence, %",
        describe=lambda place: f"{count(counts[place], 'answer')} of {edges[place]:.0f} to {edges[place + 1]:.0f} %",
    )
    return PageSection(
        "Calibration",
        f"<p>{text(calibration.verdict)}</p><h3>Right answers, %</h3>{_draw_reliability(calibration, edges)}"
        '<p class="more">The dashed line is honesty: answers of 80 % confidence are right in 80 of 100 cases. '
        '<span class="wrong">Red</span>: surer than right; <span class="right">green</span>: righter than sure.</p>'
        f"<h3>Answers of that confidence</h3>{amounts}",
        anchor="calibration",
        is_narrow=True,
    )


def _draw_reliability(calibration: Calibration, edges: list[float]) -> str:
    plot = Plot(scale_across(0.0, 100.0), scale_upward(0.0, 100.0))
    parts = [plot.draw_grid("confidence, %")]
    for place, number in enumerate(calibration.count.tolist()):
        if number == 0:
            continue
        said, was = float(calibration.confidence[place]), float(calibration.accuracy[place])
        title = f"{count(number, 'answer')} of {percent(said)} confidence: {percent(was)} right"
        gap = "var(--must)" if said > was else "var(--good)"
        for upward, paint in (
            ((0.0, 100 * was), f'fill="{colour_of(0)}" stroke="var(--sheet)"'),
            ((100 * was, 100 * said), f'fill="{gap}" fill-opacity="0.28" stroke="{gap}"'),
        ):
            parts.append(
                plot.draw_box(across=(edges[place], edges[place + 1]), upward=upward, paint=paint, title=title)
            )
    parts.append(f'<polyline points="{plot.join([(0, 0), (100, 100)])}" stroke="var(--ink)" stroke-dasharray="5 4"/>')
    return render_svg("".join(parts), label="reliability")
