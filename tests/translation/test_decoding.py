"""Beam search against exhaustive search, and sentences as people give them."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_text import make_pairs

from vitrail.translation.decoding import Hypothesis, penalize, search
from vitrail.translation.network import Seq2Seq, Seq2SeqConfig
from vitrail.translation.translator import SearchSettings, Translator
from vitrail.translation.vocabulary import BEGIN, END, Vocabulary

SIZE, LONGEST = 7, 4  # three pieces beside the signs


@pytest.fixture(scope="module", params=["linear", "attention"])
def toy(request: pytest.FixtureRequest) -> Seq2Seq:
    torch.manual_seed(1)
    model = Seq2Seq(
        Seq2SeqConfig(
            vocabulary_size=SIZE,
            mixing=request.param,
            dim=8,
            depth=1,
            mlp_dim=16,
            num_heads=2,
            max_length=8,
            positions=True,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def sources() -> tuple[Tensor, Tensor]:
    return torch.tensor([[4, 5, 6], [5, 3, 6], [3, 0, 4]]), torch.tensor([3, 2, 3])


def everything() -> Iterator[tuple[int, ...]]:
    """All translations of up to LONGEST tokens with the end."""
    for length in range(LONGEST):
        yield from itertools.product(range(4, SIZE), repeat=length)


@torch.no_grad()
def probability(model: Seq2Seq, source: Tensor, pieces: tuple[int, ...]) -> float:
    target = torch.tensor([BEGIN, *pieces])[:, None]
    places = torch.arange(len(target))
    logits = model(source[:, None], torch.tensor([len(source)]), target, places)
    return float(torch.log_softmax(logits, dim=1)[places, torch.tensor([*pieces, END])].sum())


def best_of_all(model: Seq2Seq, source: Tensor, penalty: float) -> list[Hypothesis]:
    found = []
    for pieces in everything():
        log_probability = probability(model, source, pieces)
        score = penalize(log_probability, length=len(pieces) + 1, penalty=penalty)
        found.append(Hypothesis(pieces, score, log_probability))
    return sorted(found, key=lambda one: -one.score)


def run(model: Seq2Seq, *, beam: int, penalty: float) -> list[list[Hypothesis]]:
    source, lengths = sources()
    return search(
        model, source, lengths, beam=beam, length_penalty=penalty, max_lengths=torch.full((len(lengths),), LONGEST)
    )


@pytest.mark.parametrize("penalty", [0.0, 0.6])
def test_a_beam_that_holds_everything_finds_what_exhaustive_search_finds(toy: Seq2Seq, penalty: float) -> None:
    source, lengths = sources()
    found = run(toy, beam=40, penalty=penalty)  # 1 + 3 + 9 + 27 translations
    for column, length in enumerate(lengths.tolist()):
        wanted = best_of_all(toy, source[:length, column], penalty)
        assert [one.pieces for one in found[column]] == [one.pieces for one in wanted]
        assert [one.score for one in found[column]] == pytest.approx([one.score for one in wanted], abs=1e-4)


def test_a_beam_of_four_tells_true_scores_and_rarely_misses_the_best(toy: Seq2Seq) -> None:
    source, lengths = sources()
    for column, hypotheses in enumerate(run(toy, beam=4, penalty=0.6)):
        sentence = source[: lengths[column], column]
        best = best_of_all(toy, sentence, 0.6)
        assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)
        assert len({one.pieces for one in hypotheses}) == len(hypotheses) == 4
        for one in hypotheses:
            assert one.log_probability == pytest.approx(probability(toy, sentence, one.pieces), abs=1e-4)
        assert hypotheses[0].pieces in [one.pieces for one in best[:3]]


@torch.no_grad()
def test_a_beam_of_one_takes_the_most_probable_token_each_time(toy: Seq2Seq) -> None:
    source, lengths = sources()
    for column, [found] in enumerate(run(toy, beam=1, penalty=0.6)):
        pieces: list[int] = []
        while len(pieces) < LONGEST:
            target = torch.tensor([BEGIN, *pieces])[:, None]
            sentence = source[: lengths[column], column : column + 1]
            logits = toy(sentence, lengths[column : column + 1], target, torch.tensor([len(pieces)]))[0]
            logits[:END] = -torch.inf
            if len(pieces) == LONGEST - 1:
                logits[END + 1 :] = -torch.inf
            if int(logits.argmax()) == END:
                break
            pieces.append(int(logits.argmax()))
        assert found.pieces == tuple(pieces)


@pytest.fixture(scope="module")
def translator() -> Translator:
    vocabulary = Vocabulary.trained([line for pair in make_pairs(60) for line in pair], size=90)
    torch.manual_seed(0)
    config = Seq2SeqConfig(vocabulary_size=90, dim=8, depth=1, mlp_dim=16, num_heads=2, max_length=16)
    return Translator(Seq2Seq(config).eval(), vocabulary, languages=("en", "de"))


def test_answers_do_not_depend_on_the_company_or_the_lanes(translator: Translator) -> None:
    lines = [pair[0] for pair in make_pairs(9, seed=5)]
    settings = SearchSettings(beam=3)
    together = translator.translate(lines, settings)
    alone = [translator.translate([line], settings)[0] for line in lines]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.score for one in together] == pytest.approx([one.score for one in alone], abs=1e-4)
    other = Translator(translator.model, translator.vocabulary, num_lanes=2)
    assert [one.text for one in other.translate(lines, settings)] == [one.text for one in together]


def test_a_long_line_is_split_between_its_sentences_and_a_long_sentence_cut(translator: Translator) -> None:
    sentence = "the old man sees a dog."
    [one] = translator.translate([" ".join([sentence] * 4)])
    assert one.remarks == ("the model does not know .",)
    [cut] = translator.translate(["the old man sees a dog near the big tree " * 4])
    assert any("was cut after" in remark for remark in cut.remarks)


def test_empty_lines_and_unknown_signs_are_said(translator: Translator) -> None:
    empty, strange = translator.translate(["  ", "two ☃ dogs"])
    assert (empty.text, empty.remarks) == ("", ())
    assert strange.remarks == ("the model does not know ☃",)
    assert set(strange.record()) == {"source", "translation", "score", "others", "remarks"}
    assert len(strange.others) == 3


def test_an_encoded_sentence_that_is_too_long_does_not_come_here(translator: Translator) -> None:
    with pytest.raises(ValueError, match="beam must be at least 1"):
        translator.search([np.array([5, END])], SearchSettings(beam=0))
