"""The sequence-to-sequence ResMLP and, with one setting, the transformer it is compared with (thesis 4.2 and 4.3.5)."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from vitrail.layers.mlp import ACTIVATIONS, FeedForward
from vitrail.layers.norm import make_norm
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import AnyModel, initialize
from vitrail.translation.position_layers import (
    ContextAttention,
    Padding,
    PastKeys,
    PastTokens,
    PositionAttention,
    PositionLinear,
)
from vitrail.translation.token_dropout import TokenDropout

MIXINGS = ("linear", "attention")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(CheckedSettings):
    """Settings of an encoder and a decoder."""

    vocabulary_size: int
    mixing: str = "linear"  # among the tokens of a sentence: ResMLP's linear layer, or "attention"
    dim: int = 512
    depth: int = 6  # layers of the encoder, and of the decoder
    mlp_dim: int = 2048  # hidden width of the feed-forward network
    num_heads: int = 8  # of attention
    norm: str = "affine"  # before each branch: Aff, or "layer"
    layer_scale: float = 0.2  # initial value of the scale after a branch
    activation: str = "gelu"  # or "relu", "silu", "hardswish"
    positions: bool = False  # sinusoids added to the embeddings
    dropout: float = 0.0  # of embeddings and of what each branch adds
    max_length: int = 256  # tokens of the longest sentence, with its end

    def __post_init__(self) -> None:
        self.check_counts("vocabulary_size", least=4)
        self.check_counts("dim", "depth", "mlp_dim", "num_heads", "max_length")
        self.check_choice("mixing", MIXINGS)
        self.check_choice("norm", ("affine", "layer"))
        self.check_choice("activation", tuple(ACTIVATIONS))
        self.check_flags("positions")
        self.check_number("layer_scale")
        self.check_number("dropout", below=1.0)
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide dim {self.dim}")
        if self.positions and self.dim % 2:
            raise ValueError(f"positions are pairs of sine and cosine: dim {self.dim} must be even")


class Sublayer(nn.Module):
    """A residual layer: x + dropout(scale * mix(norm(x)))."""

    mix: Any  # a module

    def __init__(self, config: Seq2SeqConfig, mix: nn.Module) -> None:
        super().__init__()
        self.norm = make_norm(config.norm, config.dim)
        self.mix = mix
        self.scale = nn.Parameter(torch.full((config.dim,), config.layer_scale))
        self.value = config.layer_scale
        self.dropout = TokenDropout(config.dropout, config.dim)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.value)

    def forward(self, tokens: Tensor, *context: Any) -> Tensor:
        return self.add(tokens, self.mix(self.norm(tokens), *context))

    def add(self, tokens: Tensor, update: Tensor) -> Tensor:
        """The tokens with what the branch has to add to them."""
        factors = self.dropout.choose(update)
        if factors is None:
            return torch.addcmul(tokens, update, self.scale)
        return torch.addcmul(tokens, update * self.scale, factors)


class CrossAttention(ContextAttention):
    """ContextAttention of the decoder's tokens to the encoder's, of which keys and values are given."""

    def forward(self, tokens: Tensor, context: tuple[Tensor, Tensor], hidden: Tensor | None) -> Tensor:
        return self.attend(tokens, *context, hidden=hidden, is_causal=False)


def _make_mix(config: Seq2SeqConfig, *, is_causal: bool) -> PositionLinear | PositionAttention:
    if config.mixing == "linear":
        return PositionLinear(config.max_length, is_causal=is_causal)
    return PositionAttention(config.dim, num_heads=config.num_heads, is_causal=is_causal)


def _make_feed_forward(config: Seq2SeqConfig) -> Sublayer:
    mix = FeedForward(config.dim, hidden_dim=config.mlp_dim, activation=config.activation)
    return Sublayer(config, mix)


class EncoderBlock(nn.Module):
    """Tokens learn from each other, then each for itself."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.communication = Sublayer(config, _make_mix(config, is_causal=False))
        self.feed_forward = _make_feed_forward(config)

    def forward(self, tokens: Tensor, padding: Padding) -> Tensor:
        return self.feed_forward(self.communication(tokens, padding))


class DecoderBlock(nn.Module):
    """Tokens learn from those before them, then from the encoder's, then each for itself."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.communication = Sublayer(config, _make_mix(config, is_causal=True))
        self.cross = Sublayer(config, CrossAttention(config.dim, num_heads=config.num_heads))
        self.feed_forward = _make_feed_forward(config)

    def forward(self, tokens: Tensor, encoded: Tensor, padding: Padding) -> Tensor:
        tokens = self.communication(tokens, Padding(None, None))
        tokens = self.cross(tokens, self.cross.mix.project(encoded), padding.hidden)
        return self.feed_forward(tokens)

    def step(self, token: Tensor, past: PastTokens | PastKeys, *, look: "_Look") -> Tensor:
        """What `forward` gives for a further token, [1, rows, dim]; several rows may belong to one sentence."""
        communication, cross = self.communication, self.cross
        token = communication.add(token, communication.mix.step(communication.norm(token), past))
        # The rows of a sentence are several queries to its one context.
        queries = cross.norm(token[0]).unflatten(0, (look.num_sentences, -1)).transpose(0, 1)
        read = cross.mix(queries, (look.key, look.value), look.hidden)
        token = cross.add(token, read.transpose(0, 1).reshape_as(token))
        return self.feed_forward(token)


@dataclass
class _Look:
    """What the tokens of a decoder's block look at."""

    key: Tensor  # [sentences, heads, length, head_dim]
    value: Tensor
    hidden: Tensor | None  # [sentences, 1, 1, length]

    @property
    def num_sentences(self) -> int:
        return len(self.key)


class DecoderState:
    """What decoding has come to: the encoder's answer, and the tokens so far, as each block has them."""

    def __init__(self, looks: list[_Look], pasts: list[PastTokens | PastKeys]) -> None:
        self.looks, self.pasts, self.num_tokens = looks, pasts, 0

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; each still belongs to the sentence at its place."""
        for past in self.pasts:
            past.reorder(rows)

    def keep(self, sentences: Tensor, *, rows: Tensor) -> None:
        """Go on with some sentences alone, and these rows of theirs."""
        for look in self.looks:
            look.key, look.value = look.key.index_select(0, sentences), look.value.index_select(0, sentences)
            look.hidden = None if look.hidden is None else look.hidden.index_select(0, sentences)
        self.reorder(rows)


class Seq2Seq(AnyModel):
    """An encoder and a decoder with one matrix of embeddings for both languages and for the answer.

    Sentences are columns: tokens are int64 [length, batch].
    """

    family = "seq2seq"
    takes: ClassVar[str] = "text"

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.dim)
        self.source_dropout = TokenDropout(config.dropout, config.dim)
        self.target_dropout = TokenDropout(config.dropout, config.dim)
        self.encoder = nn.ModuleDict(
            {
                "blocks": nn.ModuleList(EncoderBlock(config) for _ in range(config.depth)),
                "norm": make_norm(config.norm, config.dim),
            }
        )
        self.decoder = nn.ModuleDict(
            {
                "blocks": nn.ModuleList(DecoderBlock(config) for _ in range(config.depth)),
                "norm": make_norm(config.norm, config.dim),
            }
        )
        self._is_recomputing = False
        self.register_buffer("positions", make_positions(config), persistent=False)
        self.init_weights()

    positions: Tensor

    def init_weights(self) -> None:
        """Set every parameter to the value training starts from."""
        initialize(self, std=None)
        nn.init.normal_(self.embedding.weight, std=self.config.dim**-0.5)

    # What it computes.

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, places: Tensor) -> Tensor:
        """Logits [number, vocabulary] of the token after each of some places of the target.

        `lengths` are those of the source sentences. `target` begins with the sign of the beginning; `places` are
        indices into it, flat.
        """
        padding = Padding.of(lengths, length=len(source))
        decoded = self.decode(target, self.encode(source, padding), padding)
        return self.answer(decoded.flatten(0, 1).index_select(0, places))

    def encode(self, source: Tensor, padding: Padding) -> Tensor:
        """The encoder's tokens, [length, batch, dim]."""
        tokens = self.source_dropout(self.embed(source))
        for block in self.encoder["blocks"]:  # type: ignore[attr-defined]
            tokens = self._run(block, tokens, padding)
        return self.encoder["norm"](tokens)

    def decode(self, target: Tensor, encoded: Tensor, padding: Padding) -> Tensor:
        """The decoder's tokens, [length, batch, dim]; each has seen those before it."""
        tokens = self.target_dropout(self.embed(target))
        for block in self.decoder["blocks"]:  # type: ignore[attr-defined]
            tokens = self._run(block, tokens, encoded, padding)
        return self.decoder["norm"](tokens)

    def answer(self, decoded: Tensor) -> Tensor:
        """Logits of decoded tokens [..., dim]."""
        return functional.linear(decoded, self.embedding.weight)

    def embed(self, tokens: Tensor, *, first: int = 0) -> Tensor:
        """Embeddings of tokens [length, batch], the first of which stands at that place of its sentence."""
        embedded = self.embedding(tokens) * math.sqrt(self.config.dim)
        if not self.config.positions:
            return embedded
        return embedded + self.positions[first : first + len(tokens), None]

    def begin(self, source: Tensor, lengths: Tensor) -> DecoderState:
        """Encode sentences, to decode them one token at a time."""
        padding = Padding.of(lengths, length=len(source))
        encoded = self.encode(source, padding)
        blocks: Any = self.decoder["blocks"]
        contexts = (block.cross.mix.project(encoded) for block in blocks)
        looks = [_Look(key, value, padding.hidden) for key, value in contexts]
        return DecoderState(looks, [block.communication.mix.begin() for block in blocks])

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Logits [rows, vocabulary] of the token after these, one for each row: int64 [rows]."""
        token = self.embed(tokens[None], first=state.num_tokens)
        for block, look, past in zip(self.decoder["blocks"], state.looks, state.pasts, strict=True):  # type: ignore[call-overload]
            token = block.step(token, past, look=look)
        state.num_tokens += 1
        return self.answer(self.decoder["norm"](token[0]))

    def cross_attention(self, source: Tensor, lengths: Tensor, target: Tensor) -> list[Tensor]:
        """How much each token of the target reads from each of the source: [batch, heads, target, source] a layer."""
        padding = Padding.of(lengths, length=len(source))
        encoded = self.encode(source, padding)
        tokens, found = self.embed(target), []
        for block in self.decoder["blocks"]:  # type: ignore[attr-defined]
            tokens = block.communication(tokens, Padding(None, None))
            context = block.cross.mix.project(encoded)
            found.append(block.cross.mix.weights(block.cross.norm(tokens), context[0], hidden=padding.hidden))
            tokens = block.feed_forward(block.cross(tokens, context, padding.hidden))
        return found

    def _run(self, block: nn.Module, *inputs: Any) -> Tensor:
        if self._is_recomputing and self.training:
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    # What training and saving ask.

    def describe(self) -> dict[str, Any]:
        """What the config.json of a saved model says of it: enough to build it again."""
        return {"family": self.family, "name": self.name, "settings": dataclasses.asdict(self.config)}

    def parameter_layers(self) -> dict[str, int]:
        """The embeddings, the layers of the encoder, then those of the decoder."""
        depth, layers = self.config.depth, {}
        for name, _ in self.named_parameters():
            part, *rest = name.split(".")
            first = {"embedding": 0, "encoder": 1, "decoder": 1 + depth}[part]
            layers[name] = first + (int(rest[1]) if rest[0] == "blocks" else depth - 1 if part != "embedding" else 0)
        return layers

    def parts(self) -> dict[str, set[str]]:
        """No part of it is trained alone."""
        raise ValueError("a model of text learns as a whole: leave train_only out")

    def from_block(self, first: int) -> set[str]:
        """No part of it is trained alone."""
        raise ValueError("a model of text learns as a whole: leave train_only out")

    def recompute_blocks(self) -> None:
        """From now on recompute each block in the backward pass instead of keeping what is inside it."""
        self._is_recomputing = True


def make_positions(config: Seq2SeqConfig) -> Tensor:
    """Sinusoids of every place, [length, dim] (Vaswani et al. 2017); nothing where they are not added."""
    if not config.positions:
        return torch.empty(0)
    rates = torch.exp(torch.arange(0, config.dim, 2) * (-math.log(10_000.0) / config.dim))
    angles = torch.arange(config.max_length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
