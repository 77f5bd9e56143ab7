"""What tokens learn from each other: the linear layer across positions of ResMLP, and attention (thesis 4.2).

Tokens are [length, batch, dim]: the linear layer is then one product for all sentences of a batch.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.layers.dot_product import dot_product_attention


class Padding(NamedTuple):
    """Which tokens of a batch of sentences are there; None where all are."""

    present: Tensor | None  # [length, batch, 1] of ones and zeros
    hidden: Tensor | None  # [batch, 1, 1, length] added to scores: 0, or minus infinity for padding

    @classmethod
    def of(cls, lengths: Tensor, *, length: int, dtype: torch.dtype = torch.float32) -> "Padding":
        """The padding of sentences of these lengths, int64 [batch], in a batch of that length."""
        is_there = torch.arange(length, device=lengths.device) < lengths[:, None]
        if bool(is_there.all()):
            return cls(None, None)
        hidden = torch.zeros(is_there.shape, dtype=dtype, device=lengths.device).masked_fill_(~is_there, -torch.inf)
        return cls(is_there.T[:, :, None].to(dtype), hidden[:, None, None, :])


class PositionLinear(nn.Module):
    """A linear layer across positions, the same for every channel: the matrix A, of which a batch uses a submatrix.

    With `is_causal` A is lower triangular: no token sees later ones.
    """

    def __init__(self, max_length: int, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.empty(max_length, max_length))
        self.bias = nn.Parameter(torch.empty(max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=len(self.weight) ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, tokens: Tensor, padding: Padding) -> Tensor:  # [length, batch, dim]
        length = len(tokens)
        if padding.present is not None and not self.is_causal:
            tokens = tokens * padding.present
        weight = self.weight[:length, :length]
        weight = weight.tril() if self.is_causal else weight
        return torch.addmm(self.bias[:length, None], weight, tokens.flatten(1)).view_as(tokens)

    def begin(self) -> "PastTokens":
        """What decoding one token at a time begins with."""
        return PastTokens(None, 0)

    def step(self, token: Tensor, memory: "PastTokens") -> Tensor:
        """The last row of `forward` for a further token [1, batch, dim]: row t of A times what came before."""
        place = memory.num_tokens
        before = memory.add(token)
        row = self.weight[place : place + 1, : place + 1]
        return torch.addmm(self.bias[place : place + 1, None], row, before.flatten(1)).view_as(token)


class ContextAttention(nn.Module):
    """Multi-head attention of tokens to a context, or to themselves."""

    def __init__(self, dim: int, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def project(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a context [length, batch, dim], each [batch, heads, length, head_dim]."""
        length, batch = context.shape[:2]
        both = self.key_value(context).view(length, batch, 2, self.num_heads, -1).permute(2, 1, 3, 0, 4)
        return both[0], both[1]

    def attend(self, tokens: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None, is_causal: bool) -> Tensor:
        """What tokens [length, batch, dim] read from keys and values."""
        length, batch = tokens.shape[:2]
        query = self.query(tokens).view(length, batch, self.num_heads, -1).permute(1, 2, 0, 3)
        read = dot_product_attention(query, key, value, mask=hidden, is_causal=is_causal)
        return self.proj(read.permute(2, 0, 1, 3).reshape(length, batch, -1))

    def weights(self, tokens: Tensor, key: Tensor, *, hidden: Tensor | None) -> Tensor:
        """How much each token reads from each place of the context: [batch, heads, length, context], rows sum to 1."""
        length, batch = tokens.shape[:2]
        query = self.query(tokens).view(length, batch, self.num_heads, -1).permute(1, 2, 0, 3)
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        return (scores if hidden is None else scores + hidden).softmax(dim=3)


class PositionAttention(ContextAttention):
    """Self-attention among the tokens of a sentence: what the transformer has in the place of the linear layer."""

    def __init__(self, dim: int, *, num_heads: int, is_causal: bool) -> None:
        super().__init__(dim, num_heads=num_heads)
        self.is_causal = is_causal

    def forward(self, tokens: Tensor, padding: Padding) -> Tensor:
        key, value = self.project(tokens)
        hidden = None if self.is_causal else padding.hidden  # what is padded comes after all that could see it
        return self.attend(tokens, key, value, hidden=hidden, is_causal=self.is_causal)

    def begin(self) -> "PastKeys":
        """What decoding one token at a time begins with."""
        return PastKeys(PastTokens(None, 0), PastTokens(None, 0))

    def step(self, token: Tensor, memory: "PastKeys") -> Tensor:
        """The last row of `forward` for a further token [1, batch, dim]."""
        batch = token.shape[1]
        key, value = self.key_value(token).chunk(2, dim=2)
        parts = (memory.keys.add(key), memory.values.add(value))
        keys, values = (part.view(len(part), batch, self.num_heads, -1).permute(1, 2, 0, 3) for part in parts)
        return self.attend(token, keys, values, hidden=None, is_causal=False)


class PastTokens:
    """Tokens that came before, [length, batch, dim], with room for more."""

    def __init__(self, tokens: Tensor | None, num_tokens: int) -> None:
        self._tokens, self.num_tokens = tokens, num_tokens

    def add(self, token: Tensor) -> Tensor:
        """All tokens with a further one, [1, batch, dim]."""
        if self._tokens is None:
            self._tokens = token.new_empty(8, *token.shape[1:])
        elif self.num_tokens == len(self._tokens):
            self._tokens = torch.cat([self._tokens, torch.empty_like(self._tokens)])
        self._tokens[self.num_tokens] = token[0]
        self.num_tokens += 1
        return self._tokens[: self.num_tokens]

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, in this order."""
        if self._tokens is not None:
            kept = self._tokens[: self.num_tokens].index_select(1, rows)
            room = kept.new_empty(len(self._tokens) - self.num_tokens, *kept.shape[1:])
            self._tokens = torch.cat([kept, room])


class PastKeys(NamedTuple):
    """Keys and values of tokens that came before."""

    keys: PastTokens
    values: PastTokens

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, in this order."""
        self.keys.reorder(rows)
        self.values.reorder(rows)
