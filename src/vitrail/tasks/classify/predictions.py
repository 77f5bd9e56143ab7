"""The answers of the last evaluation, kept for the report."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import ImageBatch
from vitrail.storage import write_whole


def answers(logits: Tensor, batch: ImageBatch) -> np.ndarray:
    """Index, target, answer, its probability and the target's, [5, batch]; target -1 where there is none or several."""
    probabilities = logits.softmax(dim=1).cpu()
    confidence, predicted = probabilities.max(dim=1)
    targets = batch.targets if batch.targets.ndim == 1 else torch.full((len(logits),), -1)
    of_target = probabilities.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return torch.stack([batch.indices.double(), targets.double(), predicted.double(), confidence, of_target]).numpy()


def write_predictions(path: Path, columns: np.ndarray) -> None:
    """The answers on val, for the report."""
    order = np.argsort(columns[0], kind="stable")
    names = ("indices", "targets", "predicted", "confidence", "target_probability")
    arrays = {name: column[order] for name, column in zip(names, columns, strict=True)}
    for name in names[:3]:
        arrays[name] = arrays[name].astype(np.int64)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_whole(path, lambda file: file.write(content.getbuffer()))
