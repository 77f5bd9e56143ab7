"""How good translations are: BLEU and chrF by sacrebleu, with their signatures, and the paired bootstrap."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TextScores:
    """What sacrebleu says about translations of a whole set."""

    bleu: float
    tokenized_bleu: float
    chrf: float
    signatures: dict[str, str]


def score(translations: Sequence[str], references: Sequence[str]) -> TextScores:
    """BLEU of plain text, BLEU of text that is split into tokens before, as the thesis prints it, and chrF."""
    bleu, chrf = make_bleu(), _sacrebleu().CHRF()
    tokens = [split_tokens(line) for line in translations]
    reference_tokens = [split_tokens(line) for line in references]
    tokenized = _sacrebleu().BLEU(tokenize="none", force=True)
    found = {
        "bleu": bleu.corpus_score(list(translations), [list(references)]),
        "tokenized_bleu": tokenized.corpus_score(tokens, [reference_tokens]),
        "chrf": chrf.corpus_score(list(translations), [list(references)]),
    }
    signatures = {
        "bleu": str(bleu.get_signature()),
        "tokenized_bleu": str(tokenized.get_signature()),
        "chrf": str(chrf.get_signature()),
    }
    values = {name: float(one.score) for name, one in found.items()}
    return TextScores(**values, signatures=signatures)


def score_sentences(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF of each sentence, which unlike BLEU says something about a single one."""
    chrf = _sacrebleu().CHRF()
    return [float(chrf.sentence_score(one, [other]).score) for one, other in zip(translations, references, strict=True)]


def make_bleu() -> Any:
    """The BLEU that runs are measured by."""
    return _sacrebleu().BLEU()


def compare_systems(
    systems: Sequence[tuple[str, Sequence[str]]], references: Sequence[str], *, num_samples: int = 1000
) -> list[dict[str, Any]]:
    """BLEU and chrF of several systems; of all but the first, how probable their difference to it is by chance.

    Paired bootstrap resampling (Koehn 2004) by sacrebleu, whose seed is fixed.
    """
    from sacrebleu.significance import PairedTest

    metrics = {
        "BLEU": _sacrebleu().BLEU(references=[list(references)]),
        "chrF": _sacrebleu().CHRF(references=[list(references)]),
    }
    named = [(name, list(lines)) for name, lines in systems]
    signatures, scores = PairedTest(named, metrics, references=None, test_type="bs", n_samples=num_samples)()
    keys = dict(zip(metrics, (key for key in scores if key != "System"), strict=True))  # chrF is chrF2 there
    rows = []
    for place, (name, _) in enumerate(systems):
        row: dict[str, Any] = {"name": name}
        for metric, key in keys.items():
            result = scores[key][place]
            values = {name: getattr(result, name) for name in ("score", "mean", "ci", "p_value")}
            row[metric] = {name: None if value is None else float(value) for name, value in values.items()}
            if place and named[place][1] == named[0][1]:
                row[metric]["p_value"] = 1.0  # the resampling has no difference to compare with
        rows.append(row)
    rows[0]["signatures"] = {metric: str(signatures[key]) for metric, key in keys.items()}
    return rows


def split_tokens(text: str) -> str:
    """Words and signs with blanks between them by mteval's rules (13a), and compounds split at hyphens.

    The scripts of Vaswani et al. 2017 split compounds so, after Moses' tokenizer, which differs in details.
    """
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", Tokenizer13a()(text))


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError:
        raise ValueError("translation needs sentencepiece and sacrebleu: pip install 'vitrail[translation]'") from None
    return sacrebleu.metrics
