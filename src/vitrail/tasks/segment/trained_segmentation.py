"""How good a trained segmentation model is: on data of its run or other data, looked at in any way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.data.dense.class_table import apply_table, table_of
from vitrail.data.dense.contract import MaskBatch, SegmentationSet
from vitrail.data.dense.dense_sources import DenseOpening
from vitrail.data.dense.opening import open_dense_split, open_segmentation_source
from vitrail.data.dense.samples import MaskSamples
from vitrail.data.loader import Loader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.evaluation.segmentation import MaskMeter, find_confusions
from vitrail.evaluation.segmenting import Looking, Segmenter, segment
from vitrail.inference.folding import as_folded
from vitrail.inference.passes import Passes, show_progress
from vitrail.tasks.contract import EvaluationRequest
from vitrail.tasks.results import Evaluation
from vitrail.tasks.segment.looking_notes import read_looking
from vitrail.tasks.segment.measures import MEASURES

_BATCH = 4  # whole images at a time
_KEYS = ("data", "split", "batch_size", "workers", "precision", "device", "trunk")
_OPTIONS = ("scales", "flip", "window", "short_side")
_NUM_SHOWN = 5  # classes and confusions; --json has them all


def evaluate_segmentation(request: EvaluationRequest) -> Evaluation:
    """Intersection over union, by class and in the mean, and what is taken for what."""
    trained, settings = request.trained, request.settings
    refused = [name for name, value in request.options.items() if value and name not in _OPTIONS]
    refused += [name for name in settings if name not in _KEYS]
    if refused:
        raise ValueError(f"a model of the task {trained.task} is measured without {', '.join(refused)}")
    data, classes = _open(request)
    table = table_of(classes, known=trained.class_names, ignore=trained.description.get("ignore", ()), name=data.name)
    passes = Passes(data, None, {"batch_size": _BATCH, **settings}, world=request.world)
    looking = choose_looking(request)
    unread: list[Problem] = []
    loader: Loader[MaskBatch] = Loader(
        data,
        make=MaskSamples(),
        sampler=passes.make_sampler(len(data)),
        num_workers=passes.workers,
        quarantine=NotingQuarantine(unread.append),
        pin_memory=passes.device.type == "cuda",
    )
    model = as_folded(trained.model).to(passes.device)
    segmenter = Segmenter(model, looking, normalize=trained.normalize, device=passes.device, dtype=passes.dtype)
    meter, number = MaskMeter(trained.num_classes), 0
    with show_progress("segment", total=len(data)) as advance:
        for answers, batch in segment(segmenter, loader.epoch(0)):
            assert isinstance(batch, MaskBatch)
            for place, answer in enumerate(answers):
                height, width = answer.shape
                meter.update(answer, apply_table(batch.masks[place, :height, :width], table))
            number += len(answers)
            advance(len(answers) * request.world.num_ranks)
    request.world.sum(meter.counts)
    number = sum(request.world.gather(number))
    if number and not bool(meter.counts.any()):
        raise ValueError(f"no pixel of the masks of {data.split} of {data.name} is of a class: nothing can be measured")
    unread = [problem for part in request.world.gather(unread) for problem in part]
    figures = dict(meter.results())
    rows = meter.rows(trained.class_names)
    report = {
        "model": trained.model.name,
        "task": trained.task,
        "data": data.name,
        "split": data.split,
        "count": number,
        "num_left_out": len(unread),
        "precision": str(passes.dtype).removeprefix("torch."),
        "looking": describe_looking(looking),
        **figures,
    }
    confusions = find_confusions(meter.counts, trained.class_names)
    lines = [*_show(report), *_show_classes(rows), *_show_confusions(confusions)]
    record = {**report, "classes": rows, "confusions": confusions}
    return Evaluation(figures, record, "\n".join(lines), tuple(unread), table=rows)


def choose_looking(request: EvaluationRequest) -> Looking:
    """How the run looked at images, with what the options change of it."""
    looking = read_looking(request.trained.description)
    options = request.options
    changes: dict[str, Any] = {}
    if options.get("scales"):
        changes["scales"] = tuple(float(scale) for scale in options["scales"])
    if options.get("flip"):
        changes["flip"] = True
    if options.get("window"):
        changes["window"] = (int(options["window"]),) * 2
    if options.get("short_side"):
        changes["short_side"] = int(options["short_side"])
    return replace(looking, **changes)


def describe_looking(looking: Looking) -> str:
    """How images are looked at, in a few words."""
    parts = ["whole" if looking.window is None else f"windows of {looking.window[0]} x {looking.window[1]}"]
    if looking.short_side is not None:
        parts.append(f"short side {looking.short_side}")
    if looking.scales != (1.0,):
        parts.append(f"scales {', '.join(f'{scale:g}' for scale in looking.scales)}")
    if looking.flip:
        parts.append("mirrored too")
    return ", ".join(parts)


def _open(request: EvaluationRequest) -> tuple[SegmentationSet, Sequence[str]]:
    """The data that is asked for, or that of the run, and its classes."""
    settings, recipe = request.settings, request.recipe
    split = str(settings.get("split", "val"))
    if "data" in settings:
        spec, exclude = str(settings["data"]), None
    elif recipe is None or recipe.data.spec is None:
        raise ValueError(f"{request.source} is no run that has data of its own: add data=SPEC")
    elif split == "val" and not recipe.data.is_measured:
        raise ValueError(f"{request.source} was trained without val (data.val=none): add data=SPEC")
    else:
        has_other = split == "val" and recipe.data.val is not None
        spec = str(recipe.data.val if has_other else recipe.data.spec)
        exclude = None if has_other else recipe.data.quarantine
    share = recipe.data.val_share if recipe is not None else DenseOpening().val_share
    source = open_segmentation_source(spec, DenseOpening(val_share=share))
    return open_dense_split(source, split, exclude=exclude), source.classes


def _show(report: Mapping[str, Any]) -> Iterator[str]:
    left_out = report["num_left_out"]
    yield (
        f"{report['model']} on {report['split']} of {report['data']}: {report['count']:,} images, "
        f"{report['looking']}, {report['precision']}"
    )
    if left_out:
        yield f"{left_out:,} {'image' if left_out == 1 else 'images'} left out that could not be read"
    yield ""
    for measure in MEASURES:
        yield f"{measure.label:<32}{report[measure.key]:8.2f} %"


def _show_classes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    measured = [row for row in rows if row["iou"] is not None]
    width = max((len(row["class"]) for row in measured), default=0)
    yield ""
    yield f"{'class':<{width}}       IoU   recall  precision"
    for row in sorted(measured, key=lambda row: -row["iou"]):
        recall, precision = ("-" if row[key] is None else f"{row[key]:.2f}" for key in ("recall", "precision"))
        yield f"{row['class']:<{width}}  {row['iou']:8.2f} {recall:>8}  {precision:>9}"


def _show_confusions(confusions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not confusions:
        return
    yield ""
    yield "most confused, pixels (--json has all; --csv has all classes)"
    width = max(len(row["class"]) for row in confusions[:_NUM_SHOWN])
    for row in confusions[:_NUM_SHOWN]:
        yield f"  {row['class']:<{width}}  taken for {row['answer']}: {row['pixels']:,}"
