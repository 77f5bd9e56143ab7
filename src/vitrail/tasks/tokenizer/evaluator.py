"""How good tokens are: what is lost where an image is put together from them, and how many codes are in use."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitrail.data.contract import ImageBatch
from vitrail.data.loader import Loader
from vitrail.models.tokenizer import Tokenizer
from vitrail.tasks.contract import StepContext
from vitrail.tasks.results import Evaluator
from vitrail.tasks.tokenizer.sheets import NUM_PICTURES, to_pixels, write_sheet

if TYPE_CHECKING:
    from vitrail.tasks.tokenizer.task import Tokenize

SHEET = "tokens.png"


class TokenizerEvaluator(Evaluator):
    """Error of the pictures made of val's tokens, and which codes these are."""

    def __init__(self, task: "Tokenize", loader: Loader[ImageBatch]) -> None:
        self.task, self.loader = task, loader
        self.rows: list[Tensor] = []

    @torch.no_grad()
    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Reconstruction error, share of codes and their perplexity."""
        assert isinstance(model, Tokenizer), "a tokenizer is measured"
        site, num_codes = self.task.site, self.task.recipe.tokenizer.codes
        sums = torch.zeros(2, dtype=torch.float64)
        counts = torch.zeros(num_codes, dtype=torch.float64)
        self.rows = []
        for batch in self.task.evaluation_batches(self.loader):
            inputs = self.task.prepare(batch, StepContext(0, 0, 0)).inputs
            found = model.quantise(inputs)
            target, made = (found.vectors, found.codes) if found.pixels is None else (inputs, found.pixels)
            error = (made.float() - target.float()).square().double().flatten(1).mean(dim=1)
            sums += torch.stack([error.sum().cpu(), torch.tensor(float(len(error)), dtype=torch.float64)])
            counts += torch.bincount(found.tokens.flatten().cpu(), minlength=num_codes)
            self._keep_pictures(model, batch, inputs)
        error_sum, number = site.world.sum(sums).tolist()
        counts = site.world.sum(counts)
        shares = counts[counts > 0] / counts.sum()
        yield "reconstruction", error_sum / max(number, 1.0)
        yield "share_of_codes", 100.0 * len(shares) / num_codes
        yield "perplexity", float((-(shares * shares.log()).sum()).exp())

    def _keep_pictures(self, model: Tokenizer, batch: ImageBatch, inputs: Tensor) -> None:
        """The first images beside what their tokens make of them."""
        if self.rows:
            return
        tokens = model.tokens_of(inputs[:NUM_PICTURES])
        made = model.paint(tokens.view(len(tokens), *model.config.grid))
        if made is not None:
            shown = [self.task.normalize(batch.images[:NUM_PICTURES]), made.cpu()]
            self.rows = [to_pixels(row, model.preprocessing) for row in shown]

    def write(self, folder: Path) -> None:
        """Leave the pictures for the report."""
        if self.rows:
            write_sheet(folder / SHEET, self.rows)
