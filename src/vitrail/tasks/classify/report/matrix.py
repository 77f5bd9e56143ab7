"""The confusion matrix as a heat map: of many classes, those that are confused most."""

import numpy as np

from vitrail.pages.axes import TEXT
from vitrail.pages.frame import PageSection
from vitrail.pages.words import count, percent, shorten, text
from vitrail.tasks.classify.report.answered import Classes
from vitrail.tasks.classify.report.answers import Mistakes

_MAX_CLASSES = 30
_MAX_NUMBERED = 20  # with more classes there is no room for numbers in the cells
_WIDTH = 1000  # at most; a cell has at most _LARGEST_CELL
_LETTER = 6.6  # room for one of a name
_LEAN = 0.55  # of the room for names: what the last one, leaning, needs beyond the right edge
_LARGEST_CELL = 46
_MAX_LETTERS = 19
_LEAST_SIZE = 0.85  # of its own on a narrow screen, where it is pushed from side to side instead of shrinking
_FAINTEST = 0.12  # opacity of a cell with a single mistake


def confusion_section(mistakes: Mistakes, classes: Classes) -> PageSection:
    """Which classes are taken for which."""
    return PageSection("Confusion", _draw_matrix(mistakes, classes), anchor="confusion")


def _draw_matrix(mistakes: Mistakes, classes: Classes) -> str:
    """Rows are the truth, columns the answers; each cell is a share of its row."""
    shown = _choose(mistakes, classes)
    table = _tabulate(mistakes, shown)
    names = [classes.name(index) for index in shown]
    answers = [*names, "any other"] if table.shape[1] > len(shown) else names
    labels = [shorten(name, _MAX_LETTERS) for name in answers]
    room = 20 + _LETTER * max(map(len, labels))  # on the left and above
    cell = min(_LARGEST_CELL, (_WIDTH - (1 + _LEAN) * room) / len(answers))
    above = "".join(
        f'<text transform="translate({room + (column + 0.5) * cell + 4:.1f} {room - 8:.1f}) rotate(-60)" {TEXT}>'
        f"<title>{text(name)}</title>{text(label)}</text>"
        for column, (name, label) in enumerate(zip(answers, labels, strict=True))
    )
    beside = "".join(
        f'<text x="{room - 8:.1f}" y="{room + (row + 0.5) * cell + 4:.1f}" text-anchor="end" {TEXT}>'
        f"<title>{text(name)}</title>{text(label)}</text>"
        for row, (name, label) in enumerate(zip(names, labels, strict=False))
    )
    cells = "".join(
        _draw_cell(
            int(table[row, column]),
            float(table[row, column] / table[row].sum()),
            corner=(room + column * cell, room + row * cell),
            side=cell,
            colour="var(--colour-0)" if row == column else "var(--must)",
            title=f"{name}, {'recognised' if row == column else f'taken for {answer}'}",
            is_numbered=len(shown) <= _MAX_NUMBERED,
        )
        for row, name in enumerate(names)
        for column, answer in enumerate(answers)
    )
    width, height = (1 + _LEAN) * room + cell * len(answers), room + cell * len(names) + 4
    return (
        f'<div class="scroll"><svg class="matrix" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px;min-width:{_LEAST_SIZE * width:.0f}px" role="img" '
        f'aria-label="confusion matrix">{above}{beside}{cells}</svg></div>'
        f'<p class="more">{text(_describe(mistakes, shown, names))}</p>'
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


def _draw_cell(
    num_images: int,
    share: float,
    *,
    corner: tuple[float, float],
    side: float,
    colour: str,
    title: str,
    is_numbered: bool,
) -> str:
    x, y = corner
    box = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.1f}" height="{side - 1:.1f}" rx="2"'
    if num_images == 0:
        return f'<rect fill="var(--soft)" {box}/>'
    # A root, because most mistakes are small beside the right answers.
    opacity = _FAINTEST + (1 - _FAINTEST) * share**0.6
    number = ""
    if is_numbered:
        ink = "var(--sheet)" if opacity > 0.68 else "var(--ink)"
        middle = f'x="{x + side / 2:.1f}" y="{y + side / 2 + 4:.1f}" text-anchor="middle"'
        number = f'<text {middle} font-size="11.5" fill="{ink}">{num_images}</text>'
    return (
        f"<g><title>{text(title)}: {count(num_images, 'image')}, {percent(share, digits=1)}</title>"
        f'<rect fill="{colour}" {box} fill-opacity="{opacity:.2f}"/>{number}</g>'
    )


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
