"""A matrix of what was taken for what, as a heat map."""

from collections.abc import Sequence

from vitrail.pages.axes import TEXT
from vitrail.pages.words import count, percent, shorten, text

_MAX_NUMBERED = 20  # with more rows there is no room for numbers in the cells
_WIDTH = 1000  # at most; a cell has at most _LARGEST_CELL
_LETTER = 6.6  # room for one of a name
_LEAN = 0.55  # of the room for names: what the last one, leaning, needs beyond the right edge
_LARGEST_CELL = 46
_MAX_LETTERS = 19
_LEAST_SIZE = 0.85  # of its own on a narrow screen, where it is pushed from side to side instead of shrinking
_FAINTEST = 0.12  # opacity of a cell with a single mistake


def draw_matrix(
    table: Sequence[Sequence[int]], *, names: Sequence[str], answers: Sequence[str], noun: str, is_share: bool = False
) -> str:
    """Rows are the truth, columns the answers, first those of `names`; each cell is a share of its row.

    A cell counts what `noun` names, such as images; with `is_share` it shows percent of its row instead of counts.
    """
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
            int(table[row][column]),
            float(table[row][column] / max(sum(table[row]), 1)),
            corner=(room + column * cell, room + row * cell),
            side=cell,
            colour="var(--colour-0)" if row == column else "var(--must)",
            title=f"{name}, {'recognised' if row == column else f'taken for {answer}'}",
            noun=noun,
            is_numbered=len(names) <= _MAX_NUMBERED,
            is_share=is_share,
        )
        for row, name in enumerate(names)
        for column, answer in enumerate(answers)
    )
    width, height = (1 + _LEAN) * room + cell * len(answers), room + cell * len(names) + 4
    return (
        f'<div class="scroll"><svg class="matrix" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px;min-width:{_LEAST_SIZE * width:.0f}px" role="img" '
        f'aria-label="confusion matrix">{above}{beside}{cells}</svg></div>'
    )


def _draw_cell(
    number: int,
    share: float,
    *,
    corner: tuple[float, float],
    side: float,
    colour: str,
    title: str,
    noun: str,
    is_numbered: bool,
    is_share: bool,
) -> str:
    x, y = corner
    box = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.1f}" height="{side - 1:.1f}" rx="2"'
    if number == 0:
        return f'<rect fill="var(--soft)" {box}/>'
    # A root, because most mistakes are small beside the right answers.
    opacity = _FAINTEST + (1 - _FAINTEST) * share**0.6
    written = ""
    if is_numbered:
        ink = "var(--sheet)" if opacity > 0.68 else "var(--ink)"
        middle = f'x="{x + side / 2:.1f}" y="{y + side / 2 + 4:.1f}" text-anchor="middle"'
        shown = round(100 * share) if is_share else number
        written = f'<text {middle} font-size="11.5" fill="{ink}">{shown}</text>' if shown or not is_share else ""
    return (
        f"<g><title>{text(title)}: {count(number, noun)}, {percent(share, digits=1)}</title>"
        f'<rect fill="{colour}" {box} fill-opacity="{opacity:.2f}"/>{written}</g>'
    )
