"""Precision, recall, F1 and counts of each class, as a table that a reader can sort."""

import numpy as np

from vitrail.evaluation.class_scores import ClassScores
from vitrail.pages.frame import PageSection
from vitrail.pages.tables import SortedColumn, render_more, render_sortable_table
from vitrail.pages.words import Html, text
from vitrail.tasks.classify.report.answered import Classes

_MAX_ROWS = 1000  # of more classes those with the least F1 are shown
_COLUMNS = (
    SortedColumn("class"),
    SortedColumn("images", is_falling=True),
    SortedColumn("answers", is_falling=True),
    SortedColumn("right", is_falling=True),
    SortedColumn("precision, %", digits=1),
    SortedColumn("recall, %", digits=1),
    SortedColumn("F1, %", digits=1),
)


def scores_section(scores: ClassScores, classes: Classes) -> PageSection:
    """A row for each class that has images or was answered, the one with the least F1 first."""
    seen = np.flatnonzero(scores.num_images + scores.num_answers)
    worst = seen[np.argsort(scores.f1[seen], kind="stable")][:_MAX_ROWS].tolist()
    precision, recall, f1 = scores.precision, scores.recall, scores.f1
    rows = [
        (
            classes.name(index),
            *(int(counts[index]) for counts in (scores.num_images, scores.num_answers, scores.num_right)),
            *(float(share[index]) if scores.num_images[index] else None for share in (precision, recall, f1)),
        )
        for index in worst
    ]
    means = dict(scores.results())
    told = (
        f"Mean over the classes with images (macro average): precision {means['macro_precision']:.1f} %, recall "
        f"{means['class_mean_top1']:.1f} %, F1 {means['macro_f1']:.1f} %. "
        "Answers are images that were given the class, rightly or not. Choose a heading to sort by it."
    )
    table = render_sortable_table(rows, columns=_COLUMNS, name="classes-by", sorted_by=len(_COLUMNS) - 1)
    more = render_more(len(seen) - len(worst), where="classes.csv")
    return PageSection("Precision, recall and F1 by class", f"<p>{text(told)}</p>{Html(table)}{more}", anchor="scores")
