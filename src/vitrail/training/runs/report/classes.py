"""Accuracy by class, pairs that are confused, and how far the probabilities can be trusted."""

from vitrail.data.page import text
from vitrail.training.runs.report.answers import Calibration, Mistakes
from vitrail.training.runs.report.record import Classes
from vitrail.training.runs.report.words import count, percent

_MAX_CLASSES = 60  # rows of bars: of more classes the best and the worst
_MAX_PAIRS = 15
_WIDTH, _HEIGHT, _LEFT, _BASE, _COUNTS = 460, 370, 46, 250, 320  # reliability; the counts stand below it
_COUNTS_HEIGHT = 44


def draw_class_accuracy(mistakes: Mistakes, classes: Classes) -> str:
    """A bar for each class, the best first."""
    order = mistakes.seen[::-1].tolist()
    between, half = "", _MAX_CLASSES // 2
    if len(order) > _MAX_CLASSES:
        between = f'<div class="between">… {len(order) - 2 * half:,} classes between …</div>'
        order = order[:half] + order[-half:]
    rows = [_draw_class(index, mistakes, classes) for index in order]
    return f'<div class="classes accuracy">{"".join([*rows[:half], between, *rows[half:]])}</div>'


def _draw_class(index: int, mistakes: Mistakes, classes: Classes) -> str:
    name, accuracy = text(classes.name(index)), mistakes.accuracy[index]
    title = f"{mistakes.num_right[index]:,} of {count(int(mistakes.num_images[index]), 'image')}"
    return (
        f'<div class="class"><span class="name" title="{name}">{name}</span>'
        f'<span class="bars"><i class="bar split-0" style="width:{accuracy:.1f}%"></i></span>'
        f'<span class="number" title="{title}">{accuracy:.1f} %</span></div>'
    )


def list_pairs(mistakes: Mistakes, classes: Classes) -> str:
    """The most frequent mistakes."""
    if not mistakes.pairs:
        return "<p>There is not one mistake.</p>"
    rows = "".join(
        f"<tr><td><b>{text(classes.name(pair.target))}</b> taken for <b>{text(classes.name(pair.predicted))}</b>"
        f"{_note_coarse(pair.target, pair.predicted, classes)}</td>"
        f'<td class="number">{pair.num_images:,} of {mistakes.num_images[pair.target]:,}</td>'
        f'<td class="detail">{percent(pair.share)}</td></tr>'
        for pair in mistakes.pairs[:_MAX_PAIRS]
    )
    rest = sum(pair.num_images for pair in mistakes.pairs[_MAX_PAIRS:])
    more = f'<p class="more">and {count(rest, "image")} in other pairs</p>' if rest else ""
    return f'<table class="pairs">{rows}</table>{more}'


def _note_coarse(target: int, predicted: int, classes: Classes) -> str:
    """Two classes of one coarse class are the easier to forgive."""
    coarse = classes.coarse(target)
    return f'<span class="tag">both {text(coarse)}</span>' if coarse and coarse == classes.coarse(predicted) else ""


def draw_reliability(calibration: Calibration) -> str:
    """Accuracy against confidence: bars on the diagonal are honest; below, how many answers each stands for."""
    num_bins, most = len(calibration.count), max(1, int(calibration.count.max()))
    step = (_WIDTH - _LEFT - 10) / num_bins
    tall = _BASE - 10
    parts = [_draw_frame(tall)]
    for place, number in enumerate(calibration.count.tolist()):
        if number == 0:
            continue
        x = _LEFT + place * step + 1
        said, was = float(calibration.confidence[place]), float(calibration.accuracy[place])
        high, low = _BASE - tall * max(said, was), _BASE - tall * min(said, was)
        kind = "over" if said > was else "under"
        title = f"{count(number, 'answer')} of {percent(said)} confidence: {percent(was)} right"
        amount = max(1.5, _COUNTS_HEIGHT * number / most)
        parts.append(
            f'<g><title>{title}</title><rect class="fill-0" x="{x:.1f}" width="{step - 2:.1f}" '
            f'y="{_BASE - tall * was:.1f}" height="{tall * was:.1f}"/>'
            f'<rect class="gap {kind}" x="{x:.1f}" width="{step - 2:.1f}" y="{high:.1f}" height="{low - high:.1f}"/>'
            f'<rect class="amount-of" x="{x:.1f}" width="{step - 2:.1f}" '
            f'y="{_COUNTS + _COUNTS_HEIGHT - amount:.1f}" height="{amount:.1f}"/></g>'
        )
    parts.append(f'<line class="honest" x1="{_LEFT}" y1="{_BASE}" x2="{_WIDTH - 10}" y2="{_BASE - tall}"/>')
    return (
        f'<svg class="chart reliability" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="reliability">'
        f"{''.join(parts)}</svg>"
        '<p class="more">The dashed line is honesty: answers of 80 % confidence are right in 80 of 100 cases. '
        '<span class="answer">Red</span>: surer than right; <span class="truth">green</span>: righter than sure.</p>'
    )


def _draw_frame(tall: int) -> str:
    parts = []
    for mark in range(0, 101, 20):
        y = _BASE - tall * mark / 100
        x = _LEFT + (_WIDTH - _LEFT - 10) * mark / 100
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{mark}</text>')
        anchor = "end" if mark == 100 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{_BASE + 17}" text-anchor="{anchor}">{mark}</text>')
    middle = (_LEFT + _WIDTH - 10) / 2
    parts.append(f'<text x="{middle}" y="{_BASE + 34}" text-anchor="middle">confidence, %</text>')
    parts.append(f'<text x="{_LEFT}" y="{_COUNTS - 10}">answers of that confidence</text>')
    bottom = _COUNTS + _COUNTS_HEIGHT
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text transform="translate(12 {_BASE - tall / 2}) rotate(-90)" text-anchor="middle">right, %</text>')
    return "".join(parts)
