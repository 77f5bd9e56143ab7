"""How good a trained classifier is: accuracy, calibration, confusions, other image sizes and crop ratios."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from vitrail.data.quarantine import Problem
from vitrail.evaluation.average_precision import AveragePrecisionMeter
from vitrail.evaluation.class_scores import ClassScores
from vitrail.evaluation.classify import MAX_CONFUSION_CLASSES, ClassificationMeter
from vitrail.evaluation.heads import HEADS, head_answers
from vitrail.evaluation.together import Together
from vitrail.evaluation.tokens import watched_tokens
from vitrail.inference.class_names import map_targets, match_classes
from vitrail.inference.passes import Passes, folded, open_data
from vitrail.inference.trained import Trained
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.measures import MEASURES
from vitrail.tasks.contract import EvaluationRequest
from vitrail.tasks.images.labelled_data import find_coarse
from vitrail.tasks.results import Evaluation

_SWEPT = (("top-1", "top1"), ("top-5", "top5"), ("coarse", "coarse_top1"))  # names and figures of a sweep
_NUM_SHOWN = 5  # classes and confusions; --json has them all


def evaluate_classifier(request: EvaluationRequest) -> Evaluation:
    """Measure a classifier on the labels that it knows, at its own size and at others that are asked for."""
    trained, options = request.trained, request.options
    trained.require_classifier(request.source)
    refused = [name for name in ("scales", "flip", "window", "short_side", "beam") if options.get(name)]
    if refused:
        other = "translation" if refused[0] == "beam" else "segmentation"
        raise ValueError(f"{refused[0]} is for {other}: a classifier is measured with sizes and crop_ratios")
    data, level = open_data(request.source, request.settings, trained)
    passes = Passes(data, level, request.settings, world=request.world)
    measure = _Measure(passes, level, trained, answers_several=_answers_several(request.recipe))
    main = measure(trained, with_tokens=bool(options.get("tokens")))
    report = measure.describe(trained) | main.figures | {"num_left_out": len(main.unread)}
    table = list(main.class_scores.rows(trained.classes or data.level(level).classes))
    details = main.extras | {"classes": [row | {"top1": row["recall"]} for row in table]}
    details |= _describe_confusions(main.meter, [row["class"] for row in table])
    sizes, ratios = options.get("sizes") or [], options.get("crop_ratios") or []
    sweep = []
    for size in sizes or ([None] if ratios else []):
        for ratio in ratios or [None]:
            seen = trained.seeing(image_size=size, crop_ratio=ratio)
            figures = main.figures if seen.view == trained.view else measure(seen).figures
            sweep.append({"image_size": seen.view.image_size, "crop_ratio": seen.view.crop_ratio} | figures)
    lines = [*_show(report), *_show_extras(main.extras), *_show_sweep(sweep), *_show_classes(details)]
    record = report | details | ({"sweep": sweep} if sweep else {})
    return Evaluation(main.figures, record, "\n".join(lines), tuple(main.unread), table=table)


class _Pass:
    """What one pass over the data gives: the figures of the model and, where it has two heads, of each."""

    def __init__(
        self,
        num_classes: int,
        *,
        coarse_of: tuple[int, ...] | None,
        heads: tuple[str, ...],
        is_multiple: bool,
        answers_several: bool,
    ) -> None:
        self.meter = ClassificationMeter(num_classes, coarse_of=coarse_of)
        self.heads = {name: ClassificationMeter(num_classes, coarse_of=coarse_of) for name in heads}
        self.precision = AveragePrecisionMeter(num_classes) if is_multiple else None
        self.answers_several = is_multiple and answers_several
        self.tokens: list[dict[str, Any]] = []
        self.unread: list[Problem] = []

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch: logits [batch, classes], or [batch, 2, classes] of two heads."""
        if self.heads:
            for name, answers in head_answers(logits).items():
                self.heads[name].update(answers, targets)
            logits = logits.mean(dim=1)
        self.meter.update(logits, targets)
        if self.precision is not None:
            self.precision.update(logits, targets)

    def share(self, world: Together) -> None:
        """Count in what the other processes have seen."""
        for meter in (self.meter, *self.heads.values()):
            world.sum(meter.totals)
        if self.precision is not None:
            self.precision = AveragePrecisionMeter.joined(world.gather(self.precision))
        self.unread = [problem for part in world.gather(self.unread) for problem in part]

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the model itself, its heads together."""
        precision = dict(self.precision.results()) if self.precision is not None else {}
        several = dict(self.class_scores.results()) if self.answers_several else {}
        return {**dict(self.meter.results()), **precision, **several, "count": self.meter.count}

    @property
    def class_scores(self) -> ClassScores:
        """Precision, recall and F1 of each class."""
        return self.precision.class_scores() if self.precision and self.answers_several else self.meter.class_scores()

    @property
    def extras(self) -> dict[str, Any]:
        """What only some models have."""
        heads = {name: dict(meter.results()) | {"count": meter.count} for name, meter in self.heads.items()}
        return ({"heads": heads} if heads else {}) | ({"tokens": self.tokens} if self.tokens else {})


class _Measure:
    """Passes over the data, each with a model for another picture."""

    def __init__(self, passes: Passes, level: str, trained: Trained, *, answers_several: bool) -> None:
        data = passes.data
        self.passes, self.data, self.level, self.answers_several = passes, data, level, answers_several
        self.places = match_classes(trained, data.level(level).classes, name=data.name)
        self.coarse_of = trained.coarse.of if trained.coarse else None
        if self.coarse_of is None and self.places is None:
            self.coarse_of = find_coarse(data, level)[1]

    def __call__(self, trained: Trained, *, with_tokens: bool = False) -> _Pass:
        model, is_double = folded(trained)
        found = _Pass(
            trained.num_classes,
            coarse_of=self.coarse_of,
            heads=HEADS if is_double else (),
            is_multiple=self.data.level(self.level).is_multiple,
            answers_several=self.answers_several,
        )
        with contextlib.ExitStack() as stack:
            tokens = stack.enter_context(watched_tokens(model.model)) if with_tokens else None
            title = f"{trained.view.image_size} px"
            for logits, batch in self.passes.answers(model, title=title, note_unread=found.unread.append):
                found.update(logits, map_targets(batch.targets, self.places, num_classes=trained.num_classes))
        found.share(self.passes.world)
        if tokens is not None:
            tokens.share(self.passes.world)
            found.tokens = [{"after": place, "cosine": cosine} for place, cosine in tokens.results()]
        return found

    def describe(self, trained: Trained) -> dict[str, Any]:
        """What is measured on what."""
        return {
            "model": trained.model.name,
            "data": self.data.name,
            "split": self.data.split,
            "level": self.level,
            "image_size": trained.view.image_size,
            "crop_ratio": trained.view.crop_ratio,
            "precision": str(self.passes.dtype).removeprefix("torch."),
        }


def _answers_several(recipe: Recipe | None) -> bool:
    """Whether a run's model answers each class by itself, so that it may name several; others name the first."""
    objective = getattr(recipe, "objective", None)
    return objective is not None and objective.loss != "cross_entropy"


def _describe_confusions(meter: ClassificationMeter, classes: Sequence[str]) -> dict[str, Any]:
    """All confusions of images with one label, the most frequent first; too many classes have none."""
    if meter.num_classes > MAX_CONFUSION_CLASSES:
        return {}
    confusion = meter.confusion().fill_diagonal_(0)
    pairs = sorted(((int(confusion[i, j]), i, j) for i, j in confusion.nonzero().tolist()), key=lambda pair: -pair[0])
    return {"confusions": [{"class": classes[i], "answer": classes[j], "count": count} for count, i, j in pairs]}


def _show(report: Mapping[str, Any]) -> Iterator[str]:
    size = report["image_size"]
    pixels = f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
    left_out = report["num_left_out"]
    yield (
        f"{report['model']} on {report['split']} of {report['data']}: {report['count']:,} images at {pixels}, "
        f"crop ratio {report['crop_ratio']:g}, {report['precision']}"
    )
    if left_out:
        yield f"{left_out:,} {'image' if left_out == 1 else 'images'} left out that could not be read"
    yield ""
    for measure in MEASURES:
        if measure.key in report and measure.unit:
            yield f"{measure.label:<24}{report[measure.key]:8.2f} {measure.unit}"
    yield f"{'negative log-likelihood':<24}{report['negative_log_likelihood']:9.3f}"


def _show_extras(extras: Mapping[str, Any]) -> Iterator[str]:
    """The heads one by one, and the tokens layer by layer."""
    if "heads" in extras:
        yield ""
        yield "top-1 of the heads (joint: the sum of their softmaxes)"
        yield from (f"  {name:<22}{figures['top1']:8.2f} %" for name, figures in extras["heads"].items())
    if "tokens" in extras:
        yield ""
        yield "cosine of class and distillation token"
        yield from (f"  {row['after']:<22}{row['cosine']:9.3f}" for row in extras["tokens"])


def _show_sweep(sweep: list[dict[str, Any]]) -> Iterator[str]:
    if not sweep:
        return
    shown = [(name, key) for name, key in _SWEPT if key in sweep[0]]
    best = max(sweep, key=lambda row: row["top1"])
    yield ""
    yield "image size  crop ratio" + "".join(f"{name:>9}" for name, _ in shown)
    for row in sweep:
        figures = "".join(f"{row[key]:9.2f}" for _, key in shown)
        mark = "  best" if row is best and len(sweep) > 1 else ""
        size = row["image_size"] if isinstance(row["image_size"], int) else "x".join(map(str, row["image_size"]))
        yield f"{size!s:>10}{row['crop_ratio']:12.4g}{figures}{mark}"


def _show_classes(details: Mapping[str, Any]) -> Iterator[str]:
    measured = [row for row in details["classes"] if row["count"]]
    hardest = sorted(measured, key=lambda row: row["f1"])[:_NUM_SHOWN]
    if hardest:
        title = f"hardest of {len(measured)} classes, %"
        width = max(len(title), *(2 + len(row["class"]) for row in hardest))
        yield ""
        yield f"{title:<{width}}  precision   recall       F1   images"
        for row in hardest:
            shares = f"{row['precision']:9.2f}{row['recall']:9.2f}{row['f1']:9.2f}"
            yield f"  {row['class']:<{width - 2}}  {shares}{row['count']:9,}"
    confusions = details.get("confusions", [])[:_NUM_SHOWN]
    if confusions:
        yield ""
        yield "most confused (--json has all; --csv has all classes)"
        width = max(len(row["class"]) for row in confusions)
        for row in confusions:
            yield f"  {row['class']:<{width}}  taken for {row['answer']}: {row['count']:,}"
