"""The two drawings of the report: how many images each class has, and how large they are."""

from html import escape

import numpy as np

from vitrail.data.doctor.findings import Findings
from vitrail.data.stored import visible

_MAX_CLASSES = 60  # rows that are drawn: of more classes the largest and the smallest
_NUM_BINS = 32
_WIDTH, _HEIGHT, _BASE = 1000, 150, 22  # of the histogram, in its own units; the base holds the numbers


def draw_classes(findings: Findings) -> str:
    """A row of bars per class, one bar per split."""
    counts = np.array([split.class_counts for split in findings.splits])  # [splits, classes]
    order = np.argsort(-counts.sum(axis=0), kind="stable").tolist()
    most = max(1, int(counts.max(initial=0)))
    rows = [_draw_class(findings.classes[number], counts[:, number], most=most) for number in order]
    if len(rows) > _MAX_CLASSES:
        half = _MAX_CLASSES // 2
        between = f'<div class="between">… {len(rows) - 2 * half:,} classes between …</div>'
        rows = [*rows[:half], between, *rows[-half:]]
    return f'<div class="classes">{"".join(rows)}</div>'


def _draw_class(name: str, counts: np.ndarray, *, most: int) -> str:
    bars = "".join(
        f'<i class="bar split-{split % 4}" style="width:{100 * count / most:.1f}%"></i>'
        for split, count in enumerate(counts.tolist())
    )
    shown = escape(visible(name))
    numbers = " + ".join(f"{count:,}" for count in counts.tolist())
    return (
        f'<div class="class"><span class="name" title="{shown}">{shown}</span>'
        f'<span class="bars">{bars}</span><span class="number">{numbers}</span></div>'
    )


def draw_sizes(findings: Findings) -> str:
    """A histogram of the short sides, on a logarithmic axis."""
    sides = np.concatenate([split.sizes.min(axis=1) for split in findings.splits if len(split.sizes)] or [np.empty(0)])
    if not len(sides):
        return "<p>No image could be decoded.</p>"
    low, high = int(sides.min()), int(sides.max())
    if low == high:
        return f"<p>All images have a short side of {low} pixels.</p>"
    edges = np.geomspace(low, high + 1, _NUM_BINS + 1)
    counts = np.histogram(sides, edges)[0]
    step = _WIDTH / _NUM_BINS
    bars = []
    for place, count in enumerate(counts.tolist()):
        height = (_HEIGHT - 8) * count / counts.max()
        title = f"{edges[place]:.0f} to {edges[place + 1]:.0f} pixels: {count:,} images"
        bars.append(
            f'<rect x="{place * step + 1:.1f}" y="{_HEIGHT - max(height, 1.5 * bool(count)):.1f}" '
            f'width="{step - 2:.1f}" height="{max(height, 1.5 * bool(count)):.1f}" rx="2"><title>{title}</title></rect>'
        )
    marks = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        side = low * (high / low) ** share
        marks.append(f'<text x="{share * _WIDTH:.0f}" y="{_HEIGHT + 16}" text-anchor="{anchor}">{side:.0f}</text>')
    return (
        f'<svg class="sizes" viewBox="0 0 {_WIDTH} {_HEIGHT + _BASE}" role="img" aria-label="short sides in pixels">'
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>{"".join(bars)}{"".join(marks)}</svg>'
    )
