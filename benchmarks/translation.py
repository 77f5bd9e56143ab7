"""Training steps and greedy decoding of translate_small's networks beside plain `torch.nn.Transformer`, in one run.

The same sizes, vocabulary and sentences for all: batches of 3,000 tokens whose lengths are like those of captions. Ours
computes two micro-batches side by side, the plain one divides every operation among torch's threads. Greedy decoding is
of 64 sentences to 32 tokens; `torch.nn.Transformer` has no caches, and computes every prefix anew. Last, 64 tokens one
at a time with caches against the same network that computes every prefix anew, also at the paper's width and depth.
Rounds take turns, and medians count.

python benchmarks/translation.py [--rounds 5] [--threads 2]
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from measure import machine
from torch import Tensor, nn
from torch.nn import functional

from vitrail.evaluation.lanes import Lanes
from vitrail.recipes import get_recipe
from vitrail.tasks.contract import Losses
from vitrail.tasks.site import Site
from vitrail.tasks.translate.objective import NextToken
from vitrail.tasks.translate.settings import TranslateRecipe
from vitrail.tasks.translate.task import Translate
from vitrail.training.loop.replicas import Replica, Replicas
from vitrail.translation.decoding import search
from vitrail.translation.network import Seq2Seq, Seq2SeqConfig, make_positions
from vitrail.translation.position_layers import Padding
from vitrail.translation.token_batches import TokenBatch, make_batch
from vitrail.translation.vocabulary import BEGIN

_STEPS = 3  # a round of training
_SENTENCES, _LENGTH = 64, 32  # of decoding
_LONG, _FEW = 64, 8  # tokens and sentences with caches and without
_PAPER_VOCABULARY = 32_000


class Plain(nn.Module):
    """The network in torch's own modules, normalised before the branches, with the same embeddings for all."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.dim)
        self.positions = make_positions(config)
        self.transformer = nn.Transformer(
            config.dim,
            config.num_heads,
            config.depth,
            config.depth,
            config.mlp_dim,
            config.dropout,
            norm_first=True,
            batch_first=False,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) * self.config.dim**0.5 + self.positions[: len(tokens), None]

    def decode(self, target: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(target))
        tokens = self.transformer.decoder(
            self.embed(target), memory, tgt_mask=mask, memory_key_padding_mask=hidden, tgt_is_causal=True
        )
        return functional.linear(tokens, self.embedding.weight)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        hidden = torch.arange(len(source)) >= lengths[:, None]
        memory = self.transformer.encoder(self.embed(source), src_key_padding_mask=hidden)
        return self.decode(target, memory, hidden)


def make_config(recipe: TranslateRecipe, mixing: str) -> Seq2SeqConfig:
    name = "seq2seq_transformer" if mixing == "attention" else "seq2seq_resmlp"
    changed = recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": name})})
    return Translate(changed, Site()).make_config(recipe.text.vocabulary)


def make_batches(size: int, *, num_tokens: int, count: int, num_parts: int) -> list[list[TokenBatch]]:
    """Steps of so many tokens, in parts of like lengths."""
    chance = np.random.RandomState(0)
    steps = []
    for _ in range(count):
        parts = []
        for _ in range(num_parts):
            length = int(np.clip(chance.normal(16, 4), 8, 30))
            number = max(1, num_tokens // num_parts // (2 * length))
            sides = [[chance.randint(4, size, length - chance.randint(0, 2)) for _ in range(number)] for _ in range(2)]
            parts.append(make_batch(sides[0], sides[1], np.arange(number)))
        steps.append(parts)
    return steps


def train_plain(model: Plain, steps: list[list[TokenBatch]]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def run() -> None:
        for parts in steps:
            for part in parts:
                logits = model(part.source, part.lengths, part.target).flatten(0, 1)
                answers = torch.full((part.target.numel(),), -100)
                answers[part.places] = part.answers
                loss = functional.cross_entropy(logits, answers, label_smoothing=0.1, ignore_index=-100)
                (loss / len(parts)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def train_ours(model: Seq2Seq, steps: list[list[TokenBatch]], lanes: Lanes) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    replicas, objective = Replicas(model, lanes=lanes), NextToken(smoothing=0.1)

    def learn(replica: Replica, part: TokenBatch) -> Losses:
        replica.draws.begin(1, first=0, num_samples=part.num_samples)
        losses = objective(replica.model, part)
        (losses.total / 2).backward()
        return losses._replace(total=losses.total.detach())

    def run() -> None:
        for parts in steps:
            list(replicas.judge(learn, parts))
            optimizer.step()
            optimizer.zero_grad()

    return run


@torch.no_grad()
def decode_plain(model: Plain, source: Tensor) -> None:
    memory = model.transformer.encoder(model.embed(source))
    target = torch.full((1, source.shape[1]), BEGIN)
    for _ in range(_LENGTH):
        best = model.decode(target, memory, None)[-1].argmax(dim=1)
        target = torch.cat([target, best[None]])


def decode_ours(model: Seq2Seq, source: Tensor) -> None:
    lengths = torch.full((source.shape[1],), len(source))
    most = torch.full_like(lengths, _LENGTH)
    search(model, source, lengths, beam=1, length_penalty=0.0, max_lengths=most)


@torch.no_grad()
def decode_anew(model: Seq2Seq, source: Tensor) -> None:
    """Every token from the whole prefix."""
    padding = Padding(None, None)  # all sentences are of one length
    encoded = model.encode(source, padding)
    target = torch.full((1, source.shape[1]), BEGIN)
    for _ in range(_LONG):
        best = model.answer(model.decode(target, encoded, padding)[-1]).argmax(dim=1)
        target = torch.cat([target, best[None]])


@torch.no_grad()
def decode_with_caches(model: Seq2Seq, source: Tensor) -> None:
    """Every token from the one before and what is kept of the others."""
    state = model.begin(source, torch.full((source.shape[1],), len(source)))
    tokens = torch.full((source.shape[1],), BEGIN)
    for _ in range(_LONG):
        tokens = model.step(tokens, state).argmax(dim=1)


def measure(cases: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The median seconds of each case; cases take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(title: str, seconds: dict[str, float], tokens: int) -> None:
    print(f"\n{title}")
    for name, value in seconds.items():
        print(f"  {name:<28}{tokens / value:>9,.0f} tokens/s   {seconds['torch.nn.Transformer'] / value:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.manual_seed(0)
    recipe = get_recipe("translate_small")
    assert isinstance(recipe, TranslateRecipe)
    configs = {mixing: make_config(recipe, mixing) for mixing in ("linear", "attention")}
    plain = Plain(configs["attention"])
    ours = {mixing: Seq2Seq(config) for mixing, config in configs.items()}
    names = {"linear": "seq2seq_resmlp", "attention": "seq2seq_transformer"}
    steps = make_batches(recipe.text.vocabulary, num_tokens=recipe.batch_size, count=_STEPS, num_parts=2)
    tokens = sum(part.num_tokens for parts in steps for part in parts)
    print(machine(), f"{arguments.threads} threads")
    torch.set_num_threads(arguments.threads)
    with Lanes(arguments.threads, threads=1) as lanes:
        cases: dict[str, Callable[[], object]] = {"torch.nn.Transformer": train_plain(plain, steps)}
        cases |= {names[mixing]: train_ours(model, steps, lanes) for mixing, model in ours.items()}
        show("training", measure(cases, rounds=arguments.rounds), tokens)
    torch.set_num_threads(arguments.threads)
    source = torch.randint(4, recipe.text.vocabulary, (16, _SENTENCES))
    plain.eval()
    decoding: dict[str, Callable[[], object]] = {"torch.nn.Transformer": lambda: decode_plain(plain, source)}
    for mixing, model in ours.items():
        decoding[names[mixing]] = functools.partial(decode_ours, model.eval(), source)
    show("greedy decoding, one batch", measure(decoding, rounds=arguments.rounds), _SENTENCES * _LENGTH)
    for model in ours.values():
        compare_caches(model, (_FEW, _SENTENCES), rounds=arguments.rounds)
    paper = Seq2Seq(Seq2SeqConfig(vocabulary_size=_PAPER_VOCABULARY)).eval()
    compare_caches(paper, (_FEW,), rounds=arguments.rounds)


def compare_caches(model: Seq2Seq, counts: Sequence[int], *, rounds: int) -> None:
    """One token at a time with caches and without, for few sentences and for many."""
    for count in counts:
        source = torch.randint(4, model.config.vocabulary_size, (16, count))
        cached: dict[str, Callable[[], object]] = {
            "every prefix anew": functools.partial(decode_anew, model, source),
            "with caches": functools.partial(decode_with_caches, model, source),
        }
        seconds = measure(cached, rounds=rounds)
        settings = model.config
        title = f"{settings.mixing}, width {settings.dim}, {settings.depth} + {settings.depth} layers"
        gain = seconds["every prefix anew"] / seconds["with caches"]
        print(f"{title}, {_LONG} tokens of {count} sentences: caches are {gain:.1f} times as fast")


if __name__ == "__main__":
    main()
