"""The pieces of words that sentences are made of: a joint byte-pair encoding of both languages, by sentencepiece."""

import base64
import binascii
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

PAD, UNKNOWN, BEGIN, END = range(4)
_NUM_SIGNS = 4


class Vocabulary:
    """Between sentences and numbers of pieces."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise ValueError("the vocabulary is no model of sentencepiece: restore task.json") from None

    @classmethod
    def trained(cls, sentences: Iterable[str], *, size: int, coverage: float = 1.0) -> "Vocabulary":
        """A byte-pair encoding of that many pieces, from sentences of both languages; it follows from these alone."""
        written = io.BytesIO()
        try:
            _sentencepiece().SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=written,
                vocab_size=size,
                model_type="bpe",
                character_coverage=coverage,
                pad_id=PAD,
                unk_id=UNKNOWN,
                bos_id=BEGIN,
                eos_id=END,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(_explain(str(error), size)) from None
        return cls(written.getvalue())

    @classmethod
    def from_text(cls, text: Any) -> "Vocabulary":
        """The vocabulary that `as_text` wrote."""
        try:
            return cls(base64.b64decode(str(text), validate=True))
        except binascii.Error:
            raise ValueError("the vocabulary is no text of base64: restore task.json") from None

    def as_text(self) -> str:
        """The whole vocabulary as text, for JSON."""
        return base64.b64encode(self.model).decode()

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """The pieces of each sentence, and the sign of its end."""
        found = self._processor.encode(list(sentences), add_eos=True)
        return [np.asarray(pieces, dtype=np.int32) for pieces in found]

    def decode(self, pieces: Sequence[int]) -> str:
        """The sentence of some pieces, without signs."""
        return self._processor.decode([int(piece) for piece in pieces if piece >= _NUM_SIGNS])

    def show(self, pieces: Sequence[int]) -> list[str]:
        """Each piece as it is written, with a low bar where a word begins."""
        return [self._processor.id_to_piece(int(piece)) for piece in pieces]

    def unknown_in(self, sentence: str) -> str:
        """The characters of a sentence that the vocabulary has no piece for, each once."""
        letters = dict.fromkeys("".join(sentence.split()))
        return "".join(letter for letter in letters if UNKNOWN in self._processor.encode(letter))


def _explain(message: str, size: int) -> str:
    """What sentencepiece says when it can't, as one line that says what to do."""
    if found := re.search(r"value <= (\d+)", message):
        return f"text.vocabulary={size} is more than the text allows: take at most {found[1]}"
    if found := re.search(r"too small|smaller than required_chars\. (\d+) vs (\d+)", message):
        return f"text.vocabulary={size} is less than the characters of the text: raise it"
    if "Vocabulary size" in message or "vocab_size" in message:
        return f"text.vocabulary={size} does not suit the text ({' '.join(message.split())[-120:]}): change it"
    return f"the vocabulary could not be trained: {' '.join(message.split())[-160:]}"


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise ValueError("translation needs sentencepiece and sacrebleu: pip install 'vitrail[translation]'") from None
    return sentencepiece
