"""torch itself, operation by operation: the saved model, folded when it is opened. No code is in its files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.inference.engines.contract import Engine
from vitrail.inference.engines.dynamic_int8 import quantise_layers, rank_layers
from vitrail.inference.engines.threads import torch_threads
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.whole_model import PRECISIONS, Draft, WholeModel
from vitrail.weights.save import CONFIG_FILE, WEIGHTS_FILE, load_model, save_model


class EagerEngine(Engine):
    """A folded model that torch computes without a compiler."""

    name = "eager"
    has_int8 = True

    def __init__(self, whole: WholeModel, *, threads: int | None) -> None:
        self.whole, self.threads = whole, threads

    @classmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        save_model(draft.source, folder)
        return WEIGHTS_FILE, CONFIG_FILE

    @classmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "EagerEngine":
        model, given = load_model(folder), record.input
        model.reads_patches = record.model.reads_patches
        whole = WholeModel(
            model,
            preprocessing=replace(model.preprocessing, mean=given.mean, std=given.std),
            layout=given.layout,
            dtype=PRECISIONS[record.precision],
        )
        if record.quantised is not None:
            example = torch.zeros(1, given.channels, given.height, given.width, dtype=torch.uint8)
            example = example.permute(0, 2, 3, 1) if given.layout == "nhwc" else example
            quantise_layers(whole, example, kept=[str(name) for name in record.quantised.get("kept", [])])
        return cls(whole, threads=threads)

    @classmethod
    def rank_layers(cls, draft: Draft, folder: Path, pixels: Tensor) -> list[str]:
        return rank_layers(draft.whole, pixels)

    @classmethod
    def write_int8(
        cls, draft: Draft, plain: Path, folder: Path, *, pixels: Tensor, kept: Sequence[str]
    ) -> tuple[str, ...]:
        """The same files: the layers become int8 when they are opened, by what the record says."""
        return cls.write(draft, folder)

    @torch.inference_mode()
    def compute(self, images: Tensor) -> dict[str, Tensor]:
        with torch_threads(self.threads), torch.autocast("cpu", enabled=False):
            return self.whole.named(images)
