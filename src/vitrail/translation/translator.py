"""A trained model of text with its vocabulary: sentences in, translations out."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import choose_device
from vitrail.translation.decoding import Hypothesis, search
from vitrail.translation.network import Seq2Seq
from vitrail.translation.token_batches import pad_sentences
from vitrail.translation.vocabulary import Vocabulary

_TOKENS_AT_ONCE = 2048  # of source sentences and beams, in one search
_END_OF_SENTENCE = re.compile(r"(?<=[.!?…])\s+")


@dataclass(frozen=True)
class SearchSettings:
    """How translations are searched for."""

    beam: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be at least 1, not {self.beam}")


@dataclass(frozen=True)
class TranslatedLine:
    """A sentence and what was made of it."""

    source: str
    text: str
    score: float  # mean over its parts of log-probability over length penalty
    others: tuple[tuple[str, float], ...] = ()  # further translations that the search has found, with their scores
    remarks: tuple[str, ...] = ()  # what could not be translated as it is

    def record(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "others": [{"translation": text, "score": score} for text, score in self.others],
            **({"remarks": list(self.remarks)} if self.remarks else {}),
        }


class Translator:
    """Translates sentences with a model in eval mode."""

    def __init__(
        self,
        model: Seq2Seq,
        vocabulary: Vocabulary,
        *,
        languages: tuple[str, str] = ("", ""),
        device: torch.device | None = None,
        num_lanes: int | None = None,
    ) -> None:
        self.model, self.vocabulary, self.languages = model, vocabulary, languages
        self.device = device or torch.device("cpu")
        self.num_lanes = (torch.get_num_threads() if num_lanes is None else num_lanes) if self.is_on_cpu else 1

    @classmethod
    def of(cls, model: Any, description: Mapping[str, Any] | None, *, label: str, device: str = "cpu") -> "Translator":
        """A loaded model with what its task.json says; an error where it is no model of text."""
        if not isinstance(model, Seq2Seq):
            name = getattr(model, "name", "") or getattr(model, "family", "") or type(model).__name__
            raise ValueError(f"{label} holds {name}, a model of images: `vitrail predict` asks it")
        content = description or {}
        if "vocabulary" not in content:
            raise ValueError(f"{label} has no vocabulary in its task.json: restore it")
        vocabulary = Vocabulary.from_text(content["vocabulary"])
        if len(vocabulary) != model.config.vocabulary_size:
            raise ValueError(f"{label}: the vocabulary of task.json is not that of the model: restore both")
        chosen = choose_device(device)
        languages = str(content.get("source")), str(content.get("target"))
        return cls(model.eval().to(chosen), vocabulary, languages=languages, device=chosen)

    @property
    def is_on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def translate(
        self,
        sentences: Sequence[str],
        settings: SearchSettings | None = None,
        *,
        advance: Callable[[int], object] = int,
    ) -> list[TranslatedLine]:
        """Translate lines; one that is longer than the model takes is split between its sentences, then cut."""
        settings = settings or SearchSettings()
        split = [self._split(line) for line in sentences]
        parts = [part for parts, _ in split for part in parts]
        found = self.search(self.vocabulary.encode(parts), settings, advance=advance)
        answers, place = [], 0
        for line, (own, remarks) in zip(sentences, split, strict=True):
            answers.append(self._join(line, found[place : place + len(own)], remarks))
            place += len(own)
        return answers

    def search(
        self,
        encoded: Sequence[np.ndarray],
        settings: SearchSettings,
        *,
        advance: Callable[[int], object] = int,
    ) -> list[list[Hypothesis]]:
        """The translations found for encoded sentences, none longer than the model takes, in their order."""
        answers: list[list[Hypothesis]] = [[] for _ in encoded]
        with Lanes(self.num_lanes) as lanes:
            groups = list(_group(encoded, size=max(1, _TOKENS_AT_ONCE // settings.beam)))
            for group, found in zip(groups, lanes.map(self._searching(encoded, settings), groups), strict=True):
                for place, hypotheses in zip(group, found, strict=True):
                    answers[place] = hypotheses
                advance(len(group))
        return answers

    def _searching(
        self, encoded: Sequence[np.ndarray], settings: SearchSettings
    ) -> Callable[[np.ndarray], list[list[Hypothesis]]]:
        def run(group: np.ndarray) -> list[list[Hypothesis]]:
            source, lengths = (part.to(self.device) for part in pad_sentences([encoded[place] for place in group]))
            return search(
                self.model,
                source,
                lengths,
                beam=settings.beam,
                length_penalty=settings.length_penalty,
                max_lengths=self.max_lengths(lengths),
            )

        return run

    def max_lengths(self, lengths: Tensor) -> Tensor:
        """The most tokens that translations of sentences of these lengths may have."""
        return (2 * lengths + 10).clamp(max=self.model.config.max_length)

    def _split(self, line: str) -> tuple[list[str], tuple[str, ...]]:
        """A line in parts that the model takes, and what is to be said of it."""
        remarks = []
        if unknown := self.vocabulary.unknown_in(line):
            remarks.append(f"the model does not know {' '.join(unknown)}")
        longest = self.model.config.max_length
        if not line.strip():
            return [], tuple(remarks)
        if self._length(line) <= longest:
            return [line], tuple(remarks)
        parts = []
        for part in _joined(_END_OF_SENTENCE.split(line), lambda text: self._length(text) <= longest):
            kept = self._cut(part, longest)
            if kept != part:
                remarks.append(f"a sentence of more than {longest - 1} tokens was cut after {kept[-30:]!r}")
            parts.append(kept)
        return parts, tuple(remarks)

    def _length(self, text: str) -> int:
        return len(self.vocabulary.encode([text])[0])

    def _cut(self, text: str, longest: int) -> str:
        [pieces] = self.vocabulary.encode([text])
        return text if len(pieces) <= longest else self.vocabulary.decode(pieces[: longest - 1].tolist())

    def _join(self, line: str, found: Sequence[Sequence[Hypothesis]], remarks: tuple[str, ...]) -> TranslatedLine:
        texts = [self.vocabulary.decode(hypotheses[0].pieces) for hypotheses in found]
        score = sum(hypotheses[0].score for hypotheses in found) / max(1, len(found))
        others: tuple[tuple[str, float], ...] = ()
        if len(found) == 1:
            others = tuple((self.vocabulary.decode(one.pieces), one.score) for one in found[0][1:])
        return TranslatedLine(line, " ".join(texts), score, others, remarks)


def _group(encoded: Sequence[np.ndarray], *, size: int) -> Iterator[np.ndarray]:
    """Places of sentences of like length, of about `size` tokens together, the longest first."""
    lengths = np.array([len(one) for one in encoded], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, size // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


def _joined(sentences: Iterable[str], fits: Callable[[str], bool]) -> Iterator[str]:
    """Sentences put together again as long as they fit."""
    held = ""
    for sentence in sentences:
        longer = f"{held} {sentence}".strip()
        if held and not fits(longer):
            yield held
            held = sentence
        else:
            held = longer
    if held:
        yield held
