"""Short names of the runs and models that a command is given."""

from collections.abc import Sequence
from pathlib import Path


def name_runs(sources: Sequence[str]) -> dict[str, str]:
    """Each source by its name: that of its folder, unless two are the same."""
    short = [Path(source).name or source for source in sources]
    names = short if len(set(short)) == len(short) else list(sources)
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ValueError(f"a run is named twice, {twice}: name each once")
    return dict(zip(names, sources, strict=True))
