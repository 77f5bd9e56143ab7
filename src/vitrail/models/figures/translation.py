"""Published figures of translation: tokenized BLEU on newstest2014 (thesis table 4.5)."""

from vitrail.models.figures.record import Score

_T45 = "thesis table 4.5"


def _both(en_de: float, en_fr: float) -> tuple[Score, ...]:
    return Score("WMT14 en-de", en_de, "BLEU", _T45), Score("WMT14 en-fr", en_fr, "BLEU", _T45)


TRANSLATION_SCORES: dict[str, tuple[Score, ...]] = {
    "gnmt": _both(24.6, 39.9),
    "convs2s": _both(25.2, 40.5),
    "seq2seq_transformer": _both(27.3, 38.1),
    "seq2seq_resmlp_6": _both(26.4, 40.3),
    "seq2seq_resmlp_12": _both(26.8, 40.6),
}
