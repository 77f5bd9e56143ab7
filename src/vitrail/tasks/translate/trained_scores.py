"""How good trained models are on a split: scores of one, and of several with the paired bootstrap."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.evaluation.predict import choose_device
from vitrail.tasks.contract import EvaluationRequest
from vitrail.tasks.results import Evaluation
from vitrail.tasks.translate.settings import TextEvaluationSettings, TranslateRecipe
from vitrail.translation.parallel_text import Pairs, open_train_and_val, read_measured
from vitrail.translation.scores import compare_systems, score, score_sentences
from vitrail.translation.translator import SearchSettings, Translator

_KEYS = ("data", "split", "device")
_LABELS = {"bleu": "BLEU", "tokenized_bleu": "tokenized BLEU", "chrf": "chrF"}


def evaluate_translator(request: EvaluationRequest) -> Evaluation:
    """BLEU, tokenized BLEU and chrF of a model's translations, with signatures."""
    translator, pairs, settings = _prepare(request)
    own = list(pairs.source)[request.world.rank :: request.world.num_ranks]
    told = request.world.gather([line.text for line in translator.translate(own, settings)] if own else [])
    translations = [""] * len(pairs)
    for rank, texts in enumerate(told):
        translations[rank :: request.world.num_ranks] = texts
    found = score(translations, pairs.target)
    figures = {"bleu": found.bleu, "chrf": found.chrf, "tokenized_bleu": found.tokenized_bleu}
    lines = [
        f"{request.source} on {len(pairs):,} sentences of {pairs.split}, beam {settings.beam}, "
        f"length penalty {settings.length_penalty:g}",
        "",
        *(f"{label:<16}{figures[key]:6.2f}   {found.signatures[key]}" for key, label in _LABELS.items()),
    ]
    quality = score_sentences(translations, pairs.target)
    sentences = zip(pairs.source, pairs.target, translations, quality, strict=True)
    rows = [dict(zip(("source", "reference", "translation", "chrf"), row, strict=True)) for row in sentences]
    record = {
        "task": "translate",
        "split": pairs.split,
        "count": len(pairs),
        "beam": settings.beam,
        "length_penalty": settings.length_penalty,
        **figures,
        "signatures": found.signatures,
        "sentences": rows,
    }
    return Evaluation(figures, record, "\n".join(lines), table=rows)


def compare_translators(requests: Sequence[EvaluationRequest]) -> Evaluation:
    """Scores of several models on the same sentences; p is the chance that a difference to the first is none."""
    systems: list[tuple[str, list[str]]] = []
    references: Sequence[str] | None = None
    for request in requests:
        translator, pairs, settings = _prepare(request)
        if references is not None and list(references) != list(pairs.target):
            raise ValueError("the models were not trained on the same data: give the text to compare them on, data=")
        references = pairs.target
        systems.append((request.source, [one.text for one in translator.translate(list(pairs.source), settings)]))
    assert references is not None
    rows = compare_systems(systems, references)
    lines = [f"{len(references):,} sentences; paired bootstrap of 1,000 samples against the first", ""]
    for row in rows:
        cells = [f"{metric} {_show(row[metric])}" for metric in ("BLEU", "chrF")]
        lines.append(f"{row['name']:<32}{'   '.join(cells)}")
    lines += ["", *rows[0]["signatures"].values()]
    figures = {
        f"{place}.{metric}": row[metric]["score"] for place, row in enumerate(rows) for metric in ("BLEU", "chrF")
    }
    return Evaluation(figures, {"task": "translate", "count": len(references), "systems": rows}, "\n".join(lines))


def _show(result: Mapping[str, Any]) -> str:
    p_value = "" if result["p_value"] is None else f", p = {result['p_value']:.3f}"
    return f"{result['score']:.2f} ({result['mean']:.2f} ± {result['ci']:.2f}{p_value})"


def _prepare(request: EvaluationRequest) -> tuple[Translator, Pairs, SearchSettings]:
    """The model, the sentences it is measured on, and how it searches."""
    refused = [name for name, value in request.options.items() if value and name != "beam"]
    refused += [name for name in request.settings if name not in _KEYS]
    if refused:
        raise ValueError(f"a model of translation is measured without {', '.join(refused)}")
    loaded, recipe = request.trained, request.recipe
    device = str(request.settings.get("device", "auto"))
    choose_device(device)
    translator = Translator.of(loaded.model, loaded.description, label=request.source, device=device)
    settings = recipe.evaluation if isinstance(recipe, TranslateRecipe) else TextEvaluationSettings()
    search = SearchSettings(beam=request.options.get("beam") or settings.beam, length_penalty=settings.length_penalty)
    return translator, _find_pairs(request, languages=translator.languages), search


def _find_pairs(request: EvaluationRequest, *, languages: tuple[str, str]) -> Pairs:
    """The split that is asked for, or the val of the run."""
    recipe, (source, target) = request.recipe, languages
    spec, split = request.settings.get("data"), request.settings.get("split")
    if spec is None and (recipe is None or recipe.data.spec is None):
        raise ValueError(f"{request.source} is no run that has data of its own: add data=SPEC")
    if spec is not None or split is not None:
        assert recipe is not None or spec is not None
        place = str(spec if spec is not None or recipe is None else recipe.data.spec)
        return read_measured(place, source=source, target=target, split=None if split is None else str(split))
    assert recipe is not None
    assert recipe.data.spec is not None
    share = recipe.data.val_share
    val = open_train_and_val(recipe.data.spec, recipe.data.val, source=source, target=target, val_share=share)[1]
    if val is None:
        raise ValueError(f"{request.source} was trained without val (data.val=none): add data=SPEC")
    return val
