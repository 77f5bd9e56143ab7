"""How good a trained detector is, on data of its run or on other data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitrail.data.dense.contract import DetectionSet
from vitrail.data.dense.dense_sources import DenseOpening, DetectionSource
from vitrail.data.dense.opening import open_dense_split, open_detection_source
from vitrail.data.dense.samples import ObjectSamples
from vitrail.data.loader import Loader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.heads.mask_rcnn import Detector
from vitrail.inference.folding import as_folded
from vitrail.inference.passes import Passes, show_progress
from vitrail.settings.dense import FitSettings
from vitrail.tasks.contract import EvaluationRequest
from vitrail.tasks.detect.asking import ask
from vitrail.tasks.detect.coco_measures import import_evaluator, join_truth, measures_in, score
from vitrail.tasks.detect.found_objects import read_truth
from vitrail.tasks.detect.measures import MEASURES
from vitrail.tasks.results import Evaluation

_BATCH = 4  # whole images at a time
_KEYS = ("data", "split", "batch_size", "workers", "precision", "device", "trunk")
_SHOWN = 20  # classes; --json and --csv have them all


def evaluate_detector(request: EvaluationRequest) -> Evaluation:
    """COCO's numbers, and the average precision of each class."""
    trained, settings = request.trained, request.settings
    assert isinstance(trained.model, Detector)
    refused = [name for name, value in request.options.items() if value]
    refused += [name for name in settings if name not in _KEYS]
    if refused:
        raise ValueError(f"a model of the task {trained.task} is measured without {', '.join(refused)}")
    import_evaluator()
    data, source = _open(request)
    ids = _match_classes(source, known=trained.class_names, label=request.source)
    head = trained.model.config.head
    passes = Passes(data, None, {"batch_size": _BATCH, **settings}, world=request.world)
    unread: list[Problem] = []
    loader = Loader(
        data,
        make=ObjectSamples(FitSettings(short_side=head.short_side, max_side=head.max_side).build()),
        sampler=passes.make_sampler(len(data)),
        num_workers=passes.workers,
        quarantine=NotingQuarantine(unread.append),
        pin_memory=passes.device.type == "cuda",
    )
    model = as_folded(trained.model).to(passes.device)
    seen: list[tuple[int, Any, list[dict[str, Any]]]] = []
    with show_progress("detect", total=len(data)) as advance:
        for answer in ask(
            model, loader.epoch(0), normalize=trained.normalize, device=passes.device, dtype=passes.dtype
        ):
            number = data.image_id(answer.place)
            found = (one.result(image_id=number, category_ids=ids) for one in answer.objects)
            known = [result for result in found if result["category_id"] is not None]
            seen.append((answer.place, read_truth(data, answer.place, category_ids=source.category_ids), known))
            advance(request.world.num_ranks)
    unread = [problem for part in request.world.gather(unread) for problem in part]
    seen = sorted((one for part in request.world.gather(seen) for one in part), key=lambda one: one[0])
    truths, results = [truth for _, truth, _ in seen], [result for *_, known in seen for result in known]
    has_masks = head.has_masks and source.has_masks
    truth = join_truth(truths, classes=source.classes, category_ids=source.category_ids)
    scores = score(truth, results, has_masks=has_masks)
    figures = dict(measures_in(scores.numbers))
    report = {
        "model": trained.model.name,
        "task": trained.task,
        "data": data.name,
        "split": data.split,
        "count": len(truths),
        "num_left_out": len(unread),
        **figures,
    }
    rows = [
        {"class": name, **{f"{kind}_ap": values[place] for kind, values in scores.by_class.items()}}
        for place, name in enumerate(source.classes)
    ]
    text = "\n".join([*_show(report), *_show_classes(rows)])
    return Evaluation(figures, {**report, "classes": rows}, text, tuple(unread), table=rows)


def _open(request: EvaluationRequest) -> tuple[DetectionSet, DetectionSource]:
    """The data that is asked for, or that of the run."""
    settings, recipe = request.settings, request.recipe
    split = str(settings.get("split", "val"))
    exclude = None
    if "data" in settings:
        spec = str(settings["data"])
    elif recipe is None or recipe.data.spec is None:
        raise ValueError(f"{request.source} is no run that has data of its own: add data=SPEC")
    elif split == "val" and not recipe.data.is_measured:
        raise ValueError(f"{request.source} was trained without val (data.val=none): add data=SPEC")
    else:
        has_other = split == "val" and recipe.data.val is not None
        spec = str(recipe.data.val if has_other else recipe.data.spec)
        exclude = None if has_other else recipe.data.quarantine
    share = recipe.data.val_share if recipe is not None else DenseOpening().val_share
    source = open_detection_source(spec, DenseOpening(val_share=share))
    return open_dense_split(source, split, exclude=exclude), source


def _match_classes(source: DetectionSource, *, known: Sequence[str], label: str) -> list[int | None]:
    """The number that the data has for each class of the model; None where it has no such class."""
    unknown = [name for name in source.classes if name not in known]
    if unknown:
        raise ValueError(
            f"{label} does not know the classes {', '.join(unknown[:3])} of {source.name}: it was not taught"
        )
    numbers = dict(zip(source.classes, source.category_ids, strict=True))
    return [numbers.get(name) for name in known]


def _show(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{report['model']} on {report['split']} of {report['data']}: {report['count']:,} images"
    if left_out := report["num_left_out"]:
        yield f"{left_out:,} {'image' if left_out == 1 else 'images'} left out that could not be read"
    yield ""
    for measure in MEASURES:
        if measure.key in report:
            yield f"{measure.label:<36}{report[measure.key]:8.2f} %"


def _show_classes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    measured = [row for row in rows if row["box_ap"] is not None]
    if not measured:
        return
    width = max(len(row["class"]) for row in measured)
    kinds = [key for key in ("box_ap", "mask_ap") if key in measured[0]]
    yield ""
    yield f"{'class':<{width}}  {'  '.join(key.replace('_ap', ' AP').rjust(8) for key in kinds)}"
    for row in sorted(measured, key=lambda row: -row["box_ap"])[:_SHOWN]:
        yield f"{row['class']:<{width}}  {'  '.join(f'{row[key]:8.2f}' for key in kinds)}"
    if len(measured) > _SHOWN:
        yield f"and {len(measured) - _SHOWN} more classes (--json and --csv have them all)"
