"""torch itself, operation by operation: the saved model, folded when it is opened. No code is in its files."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.inference.engines.contract import Engine
from vitrail.inference.engines.threads import torch_threads
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.whole_model import PRECISIONS, Draft, WholeModel
from vitrail.weights.save import CONFIG_FILE, WEIGHTS_FILE, load_model, save_model


class EagerEngine(Engine):
    """A folded model that torch computes without a compiler."""

    name = "eager"

    def __init__(self, whole: WholeModel, *, threads: int | None) -> None:
        self.whole, self.threads = whole, threads

    @classmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        save_model(draft.source, folder)
        return WEIGHTS_FILE, CONFIG_FILE

    @classmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "EagerEngine":
        model, given = load_model(folder), record.input
        whole = WholeModel(
            model,
            preprocessing=replace(model.preprocessing, mean=given.mean, std=given.std),
            layout=given.layout,
            dtype=PRECISIONS[record.precision],
        )
        return cls(whole, threads=threads)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        with torch_threads(self.threads), torch.autocast("cpu", enabled=False):
            return self.whole.named(images)
