"""Embeddings of several models in one picture: in the plane, and their energy (thesis figures 2.5 and 2.1)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

_MARKS = "o^sDvP*X"  # with the colours, so that many classes can be told apart
_OTHERS = "#c8ccd2"
_MAX_NAMED, _NAMED_IN_COLUMN = 40, 20  # classes in the legend


def draw_planes(
    planes: Mapping[str, Tensor],
    labels: Tensor,
    classes: Sequence[str],
    path: Path,
    *,
    focus: Collection[int] | None = None,
) -> Path:
    """One panel a model: places [images, 2] such as `project_to_plane` gives, coloured by class; -1 is grey.

    With `focus`, classes by their numbers, all others are grey and behind them.
    """
    if focus is not None:
        in_focus = torch.isin(labels, torch.tensor(sorted(focus), dtype=labels.dtype))
        labels = labels.where(in_focus, -1)
    columns = min(3, len(planes))
    rows = -(-len(planes) // columns)
    seen = [number for number in range(len(classes)) if bool((labels == number).any())]
    is_named = len(seen) <= _MAX_NAMED
    num_columns = 1 + len(seen) // _NAMED_IN_COLUMN
    figure = Figure(figsize=(4.5 * columns + is_named * 2.2 * num_columns, 4.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    colours = matplotlib.colormaps["tab20" if len(seen) > 10 else "tab10"]
    for panel, (name, places) in zip(panels, planes.items(), strict=False):
        points = places.numpy()
        others = points[(labels < 0).numpy()]
        if len(others):
            panel.scatter(*others.T, s=10, color=_OTHERS, linewidths=0, label="others")
        for rank, number in enumerate(seen):
            mark = _MARKS[rank // colours.N % len(_MARKS)]
            panel.scatter(
                *points[(labels == number).numpy()].T,
                s=10,
                color=colours(rank % colours.N),
                marker=mark,
                linewidths=0,
                label=classes[number],
            )
        panel.set_title(name, fontsize=10)
        panel.set_xticks([])
        panel.set_yticks([])
    for panel in panels[len(planes) :]:
        panel.set_axis_off()
    if is_named:
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside right upper",
            fontsize=8,
            markerscale=2,
            frameon=False,
            ncols=num_columns,
        )
    return save_figure(figure, path)


def draw_energies(curves: Mapping[str, Tensor], path: Path) -> Path:
    """One curve a model: the share of the variance in its first components. The lower, the richer the embedding."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for name, curve in curves.items():
        panel.plot(np.arange(1, len(curve) + 1), 100.0 * curve.numpy(), label=name, linewidth=1.6)
    panel.set_xscale("log")
    panel.set_xlabel("principal components")
    panel.set_ylabel("cumulative energy (%)")
    panel.set_ylim(0, 101)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, loc="lower right", fontsize=9)
    return save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the picture; its ending says the format."""
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ValueError(f"the picture can't be written to {path}: {error}") from None
    return path
