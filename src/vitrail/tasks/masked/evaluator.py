"""How well masked patches of val are told, by masks that are always the same; and pictures of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitrail.data.loader import Loader
from vitrail.data.patch_masks import MaskedBatch
from vitrail.evaluation.predict import autocast
from vitrail.heads.masked import MaskedModel
from vitrail.tasks.contract import StepContext
from vitrail.tasks.masked.objective import count_right
from vitrail.tasks.results import Evaluator
from vitrail.tasks.tokenizer.sheets import NUM_PICTURES, write_sheet

if TYPE_CHECKING:
    from vitrail.tasks.masked.task import MaskedModelling

SHEET = "masked.png"
_GREY = 0.5  # masked patches of a picture


class MaskedEvaluator(Evaluator):
    """The loss at masked patches; of tokens also how many are right, and how many codes there are."""

    def __init__(self, task: "MaskedModelling", loader: Loader[MaskedBatch]) -> None:
        self.task, self.loader = task, loader
        self.rows: list[Tensor] = []

    @torch.no_grad()
    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Loss, share of right tokens, share of codes; of a trunk alone, which says nothing of masked patches, none."""
        if not isinstance(model, MaskedModel):
            return
        targets, site = self.task.targets, self.task.site
        sums = torch.zeros(3, dtype=torch.float64)  # loss, right tokens, images
        counts = torch.zeros(targets.num_codes or 0, dtype=torch.float64)
        self.rows = []
        for batch in site.reporter.evaluating(self.loader.epoch(0), len(self.loader)):
            prepared = self.task.prepare(batch, StepContext(0, 0, 0))
            assert prepared.wanted is not None
            with autocast(site.device, site.dtype):
                outputs = model(prepared.images, prepared.masks)
            outputs = outputs.float()
            right = 0.0
            if targets.num_codes is not None:
                right = float(count_right(outputs, prepared.wanted)) / prepared.wanted.shape[1]
                counts += torch.bincount(prepared.wanted.flatten().cpu(), minlength=targets.num_codes)
            cost = float(targets.cost(outputs, prepared.wanted)) * batch.num_samples
            sums += torch.tensor([cost, right, batch.num_samples], dtype=torch.float64)
            if not self.rows:
                self.rows = self._paint(batch, outputs)
        cost, right, number = site.world.sum(sums).tolist()
        yield "masked_loss", cost / max(number, 1.0)
        if targets.num_codes is not None:
            yield "token_accuracy", 100.0 * right / max(number, 1.0)
            yield "share_of_codes", 100.0 * float((site.world.sum(counts) > 0).double().mean())

    def _paint(self, batch: MaskedBatch, outputs: Tensor) -> list[Tensor]:
        """The first images, what is left of them, and what the model makes of it, where that can be seen."""
        device = self.task.site.device
        pixels = batch.images[:NUM_PICTURES].to(device).float() / 255.0
        masks = batch.masks[:NUM_PICTURES].to(device)
        size = (pixels.shape[-2], pixels.shape[-1])
        shown = nn.functional.interpolate(masks.unsqueeze(1).float(), size=size, mode="nearest") > 0.5
        rows = [pixels, torch.where(shown, _GREY, pixels)]
        made = self.task.targets.paint(outputs[:NUM_PICTURES], pixels, masks)
        if made is not None:
            rows.append(torch.where(shown, made, pixels))
        return [row.cpu() for row in rows]

    def write(self, folder: Path) -> None:
        """Leave the pictures for the report."""
        if self.rows:
            write_sheet(folder / SHEET, self.rows)
