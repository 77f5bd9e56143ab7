"""From the labels of a data set to the classes of a model, by their names."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.data.dense.contract import IGNORED

_NUM_VALUES = 256  # of a pixel of a mask


def keep_classes(classes: Sequence[str], ignore: Sequence[str]) -> list[int]:
    """The places of classes that are learnt; a name to ignore that there is not is refused."""
    unknown = [name for name in ignore if name not in classes]
    if unknown:
        known = ", ".join(classes[:8]) + (" ..." if len(classes) > 8 else "")
        raise ValueError(f"segment.ignore names {unknown[0]!r}, which is no class of the data: it has {known}")
    kept = [place for place, name in enumerate(classes) if name not in ignore]
    if len(kept) < 2:
        raise ValueError(f"{len(kept)} class is left to learn: segmentation tells at least two apart")
    return kept


def table_of(classes: Sequence[str], *, known: Sequence[str], ignore: Sequence[str] = (), name: str = "") -> Tensor:
    """For each value of a mask the class of a model that knows `known`, uint8 [256]; what it ignores is IGNORED.

    A class of the data that the model neither knows nor ignores is refused.
    """
    table = torch.full((_NUM_VALUES,), IGNORED, dtype=torch.uint8)
    for place, label in enumerate(classes):
        if label in known:
            table[place] = known.index(label)
        elif label not in ignore:
            raise ValueError(
                f"{name or 'the data'} has the class {label!r}, which the model does not know: it tells "
                f"{', '.join(known[:8])}{' ...' if len(known) > 8 else ''} apart"
            )
    return table


def apply_table(masks: Tensor, table: Tensor) -> Tensor:
    """Masks by the model's classes."""
    return table.to(masks.device)[masks.long()]
