"""Beam search over many sentences at a time, one token at a time; a beam of one is greedy decoding."""

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.translation.network import DecoderState, Seq2Seq
from vitrail.translation.vocabulary import BEGIN, END, PAD, UNKNOWN

_NEVER = (PAD, UNKNOWN, BEGIN)  # signs that no translation has
_WORTHWHILE = 0.75  # share of sentences still going below which those that have ended are dropped


class Hypothesis(NamedTuple):
    """A translation that the search has found."""

    pieces: tuple[int, ...]  # without the sign of the end
    score: float  # its log-probability over the length penalty
    log_probability: float


def penalize(log_probability: float, *, length: int, penalty: float) -> float:
    """A score that does not favour short translations: over ((5 + length) / 6) ** penalty (Wu et al. 2016).

    The length counts the sign of the end.
    """
    return log_probability / ((5.0 + length) / 6.0) ** penalty


@torch.inference_mode()
def search(
    model: Seq2Seq,
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int,
    length_penalty: float,
    max_lengths: Tensor,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence [length, batch], at most `beam` of them, the best first.

    A sentence is done when `beam` of the translations that were ever among its best `beam` have ended. `max_lengths`,
    int64 [batch], are those of the translations with their ends: the last token is always the end.
    """
    return _Search(
        model, model.begin(source, lengths), beam=beam, penalty=length_penalty, max_lengths=max_lengths
    ).run()


class _Search:
    """A search that is going on; rows are those of the decoder, `beam` for each sentence."""

    def __init__(self, model: Seq2Seq, state: DecoderState, *, beam: int, penalty: float, max_lengths: Tensor) -> None:
        self.model, self.state, self.beam, self.penalty = model, state, beam, penalty
        self.max_lengths = max_lengths
        count, device = len(max_lengths), max_lengths.device
        self.going = torch.arange(count, device=device)  # sentences whose rows are computed
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.scores = torch.full((count, beam), -torch.inf, device=device)
        self.scores[:, 0] = 0.0  # at first all rows of a sentence are alike
        self.pieces = torch.full((1, count, beam), BEGIN, device=device)
        self.offsets = torch.arange(count, device=device)[:, None] * beam

    def run(self) -> list[list[Hypothesis]]:
        """Go on until every sentence is done."""
        while len(self.going):
            self._step()
        return [sorted(found, key=lambda one: -one.score)[: self.beam] for found in self.found]

    def _step(self) -> None:
        beam, count = self.beam, len(self.going)
        logits = self.model.step(self.pieces[-1].flatten(), self.state)
        steps = torch.log_softmax(logits.float(), dim=1).view(count, beam, -1)
        steps[:, :, _NEVER] = -torch.inf
        is_last = self.max_lengths[self.going] <= self.state.num_tokens
        if bool(is_last.any()):
            ends = steps[is_last][:, :, END].clone()
            steps[is_last] = -torch.inf
            steps[is_last, :, END] = ends
        size = steps.shape[2]
        totals = (self.scores[:, :, None] + steps).flatten(1)
        best, places = totals.topk(min(2 * beam, totals.shape[1]), dim=1)
        rows, pieces = places // size, places % size
        is_end = pieces == END
        is_done = self._take_ends(best, rows, is_end)
        # Of the best candidates, those that go on, in their order.
        order = is_end.long() * best.shape[1] + torch.arange(best.shape[1], device=best.device)
        kept = order.topk(beam, dim=1, largest=False).indices
        self.scores = best.gather(1, kept).masked_fill(is_end.gather(1, kept), -torch.inf)
        before = rows.gather(1, kept)
        self.pieces = torch.cat([self.pieces.gather(2, before.expand_as(self.pieces)), pieces.gather(1, kept)[None]])
        is_done |= torch.isneginf(self.scores).all(dim=1)
        self._go_on(before, is_done)

    def _take_ends(self, best: Tensor, rows: Tensor, is_end: Tensor) -> Tensor:
        """Note the translations that end here, if they are among the best; which sentences have enough of them."""
        is_taken = is_end[:, : self.beam] & ~torch.isneginf(best[:, : self.beam])
        length = self.state.num_tokens
        for sentence, place in is_taken.nonzero().tolist():
            found = self.found[self.going[sentence]]
            if len(found) < self.beam:
                total = float(best[sentence, place])
                pieces = self.pieces[1:, sentence, rows[sentence, place]].tolist()
                score = penalize(total, length=length, penalty=self.penalty)
                found.append(Hypothesis(tuple(pieces), score, total))
        enough = [len(self.found[place]) >= self.beam for place in self.going.tolist()]
        return torch.tensor(enough, device=best.device)

    def _go_on(self, before: Tensor, is_done: Tensor) -> None:
        """Bring the decoder's rows into the new order; drop sentences that are done, once they are many."""
        count = len(self.going)
        num_going = count - int(is_done.sum())
        rows = before + self.offsets[:count]
        if num_going == 0:
            self.going = self.going[:0]
            return
        if num_going > _WORTHWHILE * count:
            if self.beam > 1:
                self.state.reorder(rows.flatten())
            self.scores[is_done] = -torch.inf
            return
        left = (~is_done).nonzero()[:, 0]
        self.state.keep(left, rows=rows[left].flatten())
        self.going, self.scores, self.pieces = self.going[left], self.scores[left], self.pieces[:, left]
