"""The two charts of a check: how many images each class has, and how large they are."""

import numpy as np

from vitrail.data.doctor.findings import Findings
from vitrail.pages.bars import BarRow, draw_bars, draw_histogram

_NUM_BINS = 32


def draw_classes(findings: Findings) -> str:
    """A row of bars per class, one bar per split."""
    counts = np.array([split.class_counts for split in findings.splits])  # [splits, classes]
    order = np.argsort(-counts.sum(axis=0), kind="stable").tolist()
    rows = [
        BarRow(findings.classes[index], own, " + ".join(f"{count:,}" for count in own))
        for index in order
        for own in [counts[:, index].tolist()]
    ]
    return draw_bars(rows, most=int(counts.max(initial=0)), noun="classes")


def draw_sizes(findings: Findings) -> str:
    """A histogram of the short sides, on a logarithmic axis."""
    sides = np.concatenate([split.sizes.min(axis=1) for split in findings.splits if len(split.sizes)] or [np.empty(0)])
    if not len(sides):
        return "<p>No image could be decoded.</p>"
    low, high = int(sides.min()), int(sides.max())
    if low == high:
        return f"<p>All images have a short side of {low} pixels.</p>"
    edges = np.geomspace(low, high + 1, _NUM_BINS + 1)
    counts = np.histogram(sides, edges)[0].tolist()
    return draw_histogram(
        counts,
        edges=edges.tolist(),
        label="short side in pixels",
        describe=lambda place: f"{edges[place]:.0f} to {edges[place + 1]:.0f} pixels: {counts[place]:,} images",
        is_logarithmic=True,
    )
