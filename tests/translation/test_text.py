"""Parallel text, the vocabulary, and batches by tokens."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from toy_text import make_pairs, write_text

from vitrail.data.sampler import Ranks
from vitrail.translation.parallel_text import open_text, open_train_and_val
from vitrail.translation.token_batches import Sentences, TokenLoader, TokenSampler, make_batch
from vitrail.translation.vocabulary import BEGIN, END, PAD, Vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.trained([line for pair in make_pairs(60) for line in pair], size=90)


def open_here(folder: Path) -> tuple[int, int, list[str]]:
    train, val = open_train_and_val(str(folder), None, source="en", target="de", val_share=0.25)
    assert val is not None
    return len(train), len(val), list(val.target)


def test_two_files_a_split_compressed_or_not_and_a_table_are_the_same_text(tmp_path: Path) -> None:
    plain = write_text(tmp_path / "plain")
    packed, table = tmp_path / "packed", tmp_path / "table"
    packed.mkdir()
    table.mkdir()
    for path in plain.iterdir():
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    for split in ("train", "val"):
        sides = [(plain / f"{split}.{language}").read_text().splitlines() for language in ("en", "de")]
        rows = "".join(f"{one}\t{other}\r\n" for one, other in zip(*sides, strict=True))
        (table / f"{split.replace('val', 'dev')}.tsv").write_text(rows)
    assert open_here(plain) == open_here(packed) == open_here(table)
    assert open_text(str(plain), source="en", target="de").read("valid").locate(3).endswith("val.en:4")


def test_a_table_without_val_gives_some_of_its_pairs(tmp_path: Path) -> None:
    pairs = make_pairs(40)
    (tmp_path / "all.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in pairs))
    num_train, num_val, held = open_here(tmp_path / "all.tsv")
    assert (num_train, num_val) == (30, 10)
    assert held == open_here(tmp_path / "all.tsv")[2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"train.en": b"a\nb\n", "train.de": b"x\n"}, "train.en has 2 lines and .*train.de has 1: line by line"),
        ({"train.en": b"", "train.de": b""}, "train.en is empty: there is nothing to learn from"),
        ({"train.en": b"a\n\xff\n", "train.de": b"x\ny\n"}, "train.en, line 2: it is not UTF-8"),
        ({"train.en": b"a\n"}, "train.en has no translation beside it: there is no train.de"),
        ({"train.fr": b"a\n", "train.cs": b"a\n"}, "has no parallel text.*it has cs, fr: set text.source"),
        ({"train.tsv": b"a\tb\nc\n"}, "train.tsv, line 2: a row needs two columns"),
        ({"train.en.gz": b"no gzip", "train.de.gz": b"no gzip"}, "train.en.gz cannot be read: it is damaged"),
    ],
)
def test_text_that_cannot_be_used_is_one_line(tmp_path: Path, content: dict[str, bytes], said: str) -> None:
    for name, lines in content.items():
        (tmp_path / name).write_bytes(lines)
    with pytest.raises(ValueError, match=said) as caught:
        open_here(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_line_of_another_separator_stays_one(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\u2028b\nc\n\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("x\ny\n\n", encoding="utf-8")
    pairs = open_text(str(tmp_path), source="en", target="de").read("train")
    assert len(pairs) == 3
    assert len(pairs.without_empty()) == 2


def test_the_vocabulary_follows_from_the_text_and_travels_as_text(vocabulary: Vocabulary) -> None:
    again = Vocabulary.trained([line for pair in make_pairs(60) for line in pair], size=90)
    assert again.model == vocabulary.model
    read = Vocabulary.from_text(vocabulary.as_text())
    [pieces] = read.encode(["two old dogs"])
    assert pieces[-1] == END
    assert read.decode(pieces.tolist()) == "two old dogs"
    assert len(read) == 90
    assert read.unknown_in("two ☃ dogs and a ☃ or é") == "☃é"


@pytest.mark.parametrize(("size", "said"), [(5000, "more than the text allows: take at most"), (9, "less than the")])
def test_a_vocabulary_that_does_not_suit_the_text_is_refused(size: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"text.vocabulary={size} is {said}"):
        Vocabulary.trained([line for pair in make_pairs(20) for line in pair], size=size)
    with pytest.raises(ValueError, match="no model of sentencepiece"):
        Vocabulary(b"something else")


def lengths_of(count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.RandomState(0)
    source = chance.randint(3, 20, count)
    return source, np.maximum(2, source + chance.randint(-2, 3, count))


def test_an_epoch_sees_every_pair_once_in_steps_of_about_equal_tokens() -> None:
    source, target = lengths_of()
    sampler = TokenSampler(source, target, batch_size=400, piece_size=100)
    parts = list(sampler.epoch(3))
    assert sorted(np.concatenate([part.indices for part in parts]).tolist()) == list(range(200))
    assert len(parts) == sampler.num_steps == len(list(sampler.epoch(4)))
    tokens = [int((source + target)[part.indices].sum()) for part in parts]
    assert max(tokens) < 1.3 * 400
    assert sum(tokens) == pytest.approx(sampler.batch_size * sampler.num_steps, rel=0.01)


def test_the_order_follows_from_seed_epoch_and_step() -> None:
    source, target = lengths_of()

    def indices(seed: int, epoch: int, start: int = 0) -> list[list[int]]:
        sampler = TokenSampler(source, target, batch_size=400, piece_size=100, seed=seed)
        return [part.indices.tolist() for part in sampler.epoch(epoch, start_step=start)]

    assert indices(0, 1) == indices(0, 1)
    assert indices(0, 1)[2:] == indices(0, 1, start=2)
    assert indices(0, 1) != indices(0, 2)
    assert indices(0, 1) != indices(1, 1)


@pytest.mark.parametrize(("num_ranks", "num_micro"), [(1, 2), (2, 1), (2, 3), (3, 4)])
def test_processes_and_micro_batches_divide_the_same_steps(num_ranks: int, num_micro: int) -> None:
    source, target = lengths_of()
    whole = list(TokenSampler(source, target, batch_size=400, piece_size=100).epoch(0))
    ranks = [
        TokenSampler(
            source,
            target,
            batch_size=400,
            piece_size=100,
            num_micro_batches=num_micro,
            ranks=Ranks(rank, num_ranks),
        )
        for rank in range(num_ranks)
    ]
    parts = [list(sampler.epoch(0)) for sampler in ranks]
    assert {len(own) for own in parts} == {len(whole) * num_micro}
    for step, batch in enumerate(whole):
        own = [part for of_rank in parts for part in of_rank[step * num_micro : (step + 1) * num_micro]]
        own.sort(key=lambda part: part.first)
        assert np.concatenate([part.indices for part in own]).tolist() == batch.indices.tolist()
        assert [part.first for part in own] == np.cumsum([0, *(len(part.indices) for part in own)])[:-1].tolist()
        assert {part.num_of_step for part in own} == {int(target[batch.indices].sum())}


def test_sentences_of_like_length_go_together_so_that_little_is_padded() -> None:
    source, target = lengths_of(2000)
    sides = [Sentences([np.full(length, 5, dtype=np.int32) for length in lengths]) for lengths in (source, target)]
    sampler = TokenSampler(source, target, batch_size=800, piece_size=400, num_micro_batches=2)
    batches = list(TokenLoader(*sides, sampler=sampler).epoch(0))
    padded = sum(batch.source.numel() + batch.target.numel() for batch in batches)
    assert padded < 1.1 * sum(batch.num_tokens for batch in batches)


def test_a_batch_asks_for_every_token_after_the_one_before() -> None:
    batch = make_batch(
        [np.array([7, END]), np.array([8, 9, END])], [np.array([5, 6, END]), np.array([4, END])], np.array([3, 1])
    )
    assert batch.source.T.tolist() == [[7, END, PAD], [8, 9, END]]
    assert batch.lengths.tolist() == [2, 3]
    assert batch.target.T.tolist() == [[BEGIN, 5, 6], [BEGIN, 4, END]]
    asked = batch.target.flatten()[batch.places].tolist()
    assert list(zip(asked, batch.answers.tolist(), strict=True)) == [(BEGIN, 5), (BEGIN, 4), (5, 6), (4, END), (6, END)]


def test_a_step_of_fewer_sentences_than_parts_is_refused() -> None:
    source, target = lengths_of(4)
    with pytest.raises(ValueError, match="a step of 4 sentences can't be divided into 1 x 5 parts"):
        TokenSampler(source, target, batch_size=4000, piece_size=100, num_micro_batches=5)
