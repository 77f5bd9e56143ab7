"""Where bars of progress can be drawn: a terminal, or a notebook that has the widgets for it."""

import importlib.util

from rich.console import Console


def can_draw_bars(console: Console) -> bool:
    """Whether a bar may be drawn and drawn again; elsewhere plain lines are for people."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)
