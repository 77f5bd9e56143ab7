"""What the readers of published data sets share: a val that is the official test, or one taken from train."""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from vitrail.data.contract import Dataset, Note
from vitrail.data.splits import complete
from vitrail.data.stored import OpenedSource, Subset


class ReportedSource(OpenedSource):
    """A source whose val is what the papers report as test: `test` means it too, but it is listed only once."""

    aliases = MappingProxyType({"test": "val"})


def hold_out(train: Dataset, names: Sequence[str], *, share: float, seed: int) -> tuple[list[Dataset], list[Note]]:
    """A train and a val made of `train`, the same on every machine, and the note that says so.

    `names` holds a name for each sample that does not depend on where the data lies. With a share of 0 there is no val.
    """
    if share == 0:
        return [train], []
    labels = train.level().labels
    splits, notes = complete(np.full(len(train), "train"), names=names, labels=labels, share=share, seed=seed)
    parts: list[Dataset] = []
    for split in ("train", "val"):
        part = Subset(train, np.flatnonzero(splits == split))
        part.split = split
        parts.append(part)
    return parts, notes


def first_line(error: Exception) -> str:
    """What an error of another library says, cut to one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
