"""The confusion matrix as a heat map: of many classes, those that are confused most."""

import numpy as np

from vitrail.pages.frame import PageSection
from vitrail.pages.matrix import draw_matrix
from vitrail.pages.words import percent, text
from vitrail.tasks.classify.report.answered import Classes
from vitrail.tasks.classify.report.answers import Mistakes

_MAX_CLASSES = 30


def confusion_section(mistakes: Mistakes, classes: Classes) -> PageSection:
    """Which classes are taken for which."""
    return PageSection("Confusion", _draw_matrix(mistakes, classes), anchor="confusion")


def _draw_matrix(mistakes: Mistakes, classes: Classes) -> str:
    """Rows are the truth, columns the answers; each cell is a share of its row."""
    shown = _choose(mistakes, classes)
    table = _tabulate(mistakes, shown)
    names = [classes.name(index) for index in shown]
    answers = [*names, "any other"] if table.shape[1] > len(shown) else names
    return (
        draw_matrix(table.tolist(), names=names, answers=answers, noun="image")
        + f'<p class="more">{text(_describe(mistakes, shown, names))}</p>'
    )


def _choose(mistakes: Mistakes, classes: Classes) -> list[int]:
    """The classes to show, those of a coarse class beside each other."""
    seen = np.flatnonzero(mistakes.num_images)
    if len(seen) > _MAX_CLASSES:
        seen = seen[np.argsort(-mistakes.num_involved[seen], kind="stable")][:_MAX_CLASSES]
    return sorted(seen.tolist(), key=lambda index: (classes.coarse_of[index] if classes.coarse_of else 0, index))


def _tabulate(mistakes: Mistakes, shown: list[int]) -> np.ndarray:
    """Images [shown, shown], with one more column for all other answers if there are any."""
    place = {index: row for row, index in enumerate(shown)}
    table = np.zeros((len(shown), len(shown) + 1), dtype=np.int64)
    for row, index in enumerate(shown):
        table[row, row] = mistakes.num_right[index]
    for pair in mistakes.pairs:
        if pair.target in place:
            table[place[pair.target], place.get(pair.predicted, len(shown))] += pair.num_images
    return table if table[:, -1].any() else table[:, :-1]


def _describe(mistakes: Mistakes, shown: list[int], names: list[str]) -> str:
    how = "Rows are the true classes, columns the answers; the stronger the colour, the larger the share of the row"
    num_seen = int((mistakes.num_images > 0).sum())
    if num_seen == len(names):
        return f"{how}."
    chosen = set(shown)
    inside = sum(pair.num_images for pair in mistakes.pairs if pair.target in chosen)
    share = inside / max(mistakes.num_mistakes, 1)
    return (
        f"{how}. Shown are the {len(names)} classes with the most mistakes, which have {percent(share)} of all; "
        f"the other {num_seen - len(names):,} classes are left out."
    )
