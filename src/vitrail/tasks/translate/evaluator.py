"""How good a run is: the loss on val, and BLEU and chrF of its translations."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import autocast
from vitrail.storage import write_json
from vitrail.tasks.results import Evaluator
from vitrail.translation.network import Seq2Seq
from vitrail.translation.scores import score, score_sentences
from vitrail.translation.token_batches import TokenBatch, TokenLoader
from vitrail.translation.translator import SearchSettings, Translator

if TYPE_CHECKING:
    from vitrail.tasks.translate.task import Translate

TRANSLATIONS = "translations.json"


class TranslationEvaluator(Evaluator):
    """Translates val; greedily while the run goes on, by beam search at its end."""

    def __init__(self, task: "Translate", loader: TokenLoader) -> None:
        self.task, self.loader = task, loader
        self.is_last = True
        self.left: dict[str, Any] = {}

    def begin(self, *, epoch: float, is_last: bool) -> None:
        """Hear whether the run has ended."""
        self.is_last = is_last

    @torch.no_grad()
    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Loss, BLEU, chrF and tokenized BLEU."""
        assert isinstance(model, Seq2Seq), "make_model gives one"
        was_training = model.training
        model.eval()
        try:
            [(loss, translations)] = self.task.site.reporter.evaluating(self._ask(model), 1)
        finally:
            model.train(was_training)
        val = self.task.data.val
        assert val is not None, "nothing is measured without val"
        found = score(translations, val.target)
        rows = zip(val.source, val.target, translations, score_sentences(translations, val.target), strict=True)
        self.left = {
            "signatures": found.signatures,
            "beam": self._settings.beam,
            "sentences": [list(row) for row in rows],
        }
        yield "bleu", found.bleu
        yield "chrf", found.chrf
        yield "val_loss", loss
        yield "tokenized_bleu", found.tokenized_bleu

    @property
    def _settings(self) -> SearchSettings:
        settings = self.task.recipe.evaluation
        return SearchSettings(
            beam=settings.beam if self.is_last else settings.beam_while_training,
            length_penalty=settings.length_penalty,
        )

    def _ask(self, model: Seq2Seq) -> Iterator[tuple[float, list[str]]]:
        """The loss and the translations, as the one batch that an evaluation has."""
        yield self._measure_loss(model), self._translate(model)

    def _measure_loss(self, model: Seq2Seq) -> float:
        """The cross-entropy of a token of val, without smoothing."""
        site = self.task.site

        def judge(batch: TokenBatch) -> tuple[float, int]:
            moved = batch.to(site.device)
            with torch.inference_mode(), autocast(site.device, site.dtype):
                logits = model(moved.source, moved.lengths, moved.target, moved.places)
                loss = functional.cross_entropy(logits.float(), moved.answers, reduction="sum")
            return float(loss), len(moved.answers)

        batches = list(self.loader.epoch(0))
        with Lanes(self._num_lanes) as lanes:
            parts = list(lanes.map(judge, batches))
        sums = torch.tensor(parts, dtype=torch.float64).view(-1, 2).sum(dim=0)
        total, count = site.world.sum(sums).tolist()
        return total / max(1.0, count)

    def _translate(self, model: Seq2Seq) -> list[str]:
        """Translations of all of val, which processes divide among them."""
        site, val = self.task.site, self.task.data.val
        assert val is not None
        vocabulary, longest = self.task.data.vocabulary, model.config.max_length
        mine = np.arange(len(val))[site.world.rank :: site.world.num_ranks]
        translator = Translator(model, vocabulary, device=site.device, num_lanes=self._num_lanes)
        encoded = [_cut(pieces, longest) for pieces in vocabulary.encode([val.source[index] for index in mine])]
        found = translator.search(encoded, self._settings)
        own = {int(index): vocabulary.decode(one[0].pieces) for index, one in zip(mine, found, strict=True)}
        everyone = {index: text for part in site.world.gather(own) for index, text in part.items()}
        return [everyone[index] for index in range(len(val))]

    @property
    def _num_lanes(self) -> int:
        site = self.task.site
        if site.device.type != "cpu":
            return 1
        return torch.get_num_threads() if site.num_lanes is None else site.num_lanes

    def write(self, folder: Path) -> None:
        """Leave the translations for the report and for comparisons."""
        write_json(folder / TRANSLATIONS, self.left)


def _cut(pieces: np.ndarray, longest: int) -> np.ndarray:
    return pieces if len(pieces) <= longest else np.append(pieces[: longest - 1], pieces[-1:])
