"""Dropout of single numbers of tokens, whose draws belong to the sentence, its token and the step."""

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.layers.sample_draws import RandomLayer, hash_numbers

_NUM_MASKS = 4096


class TokenDropout(RandomLayer):
    """Dropout of [length, batch, dim]; what is left is scaled to keep the mean.

    Each token gets one of a few thousand masks, which one is a function of the step, the layer, the sentence's place in
    the global batch and the token's in the sentence alone: padding, micro-batches and processes change none. To pick
    masks is several times as fast on a CPU as to draw every number.
    """

    masks: Tensor

    def __init__(self, rate: float, dim: int) -> None:
        super().__init__(rate)
        self.dim = dim
        if rate:
            self.register_buffer("masks", torch.empty(_NUM_MASKS, dim), persistent=False)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the masks, the same for every model of this width and rate."""
        if self.rate:
            numbers = hash_numbers(torch.arange(_NUM_MASKS * self.dim)).view(_NUM_MASKS, self.dim)
            self.masks.copy_((numbers >= self.rate) / (1.0 - self.rate))

    def forward(self, tokens: Tensor) -> Tensor:
        chosen = self.choose(tokens)
        return tokens if chosen is None else tokens * chosen

    def choose(self, tokens: Tensor) -> Tensor | None:
        """The factors of tokens [length, batch, dim]; None where nothing is dropped."""
        if not self.is_active:
            return None
        length, num_rows = tokens.shape[:2]
        if self.draws is None or not self.draws.knows(num_rows):
            return functional.dropout(torch.ones_like(tokens), self.rate)
        picked = self.draws.integers(self.number, num_rows=num_rows, length=length, stop=_NUM_MASKS)
        return functional.embedding(picked.T, self.masks)
