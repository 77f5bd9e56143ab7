"""COCO's twelve numbers for boxes and for masks, computed by faster-coco-eval."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# In the order of COCO's own summary.
NUMBERS = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large"),
)
_KINDS = {"box": "bbox", "mask": "segm"}  # our word, and COCO's
Record = Mapping[str, Any]


class ImageTruth(NamedTuple):
    """What is known of one image, as COCO writes it down."""

    image: Record  # id, height, width
    annotations: tuple[Record, ...]  # of its objects; their ids are given when all are put together


class CocoScores(NamedTuple):
    """What answers are worth."""

    numbers: dict[str, float]  # by key, in percent; a number that needs objects which are not there is left out
    by_class: dict[str, list[float | None]]  # average precision of each class, in percent, for boxes and maybe masks


def import_evaluator() -> Any:
    """The package faster_coco_eval; where it is not installed, the error says how it is."""
    try:
        import faster_coco_eval
    except ImportError:
        raise ValueError("detection is measured by faster-coco-eval: pip install 'vitrail[detect]'") from None
    return faster_coco_eval


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """A mask [height, width] of zeros and ones as COCO's compressed run lengths, text that JSON takes."""
    packed = import_evaluator().mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    counts = packed["counts"]
    return {
        "size": [int(side) for side in packed["size"]],
        "counts": counts.decode("ascii") if isinstance(counts, bytes) else counts,
    }


def decode_mask(packed: Mapping[str, Any]) -> np.ndarray:
    """The mask [height, width] of compressed run lengths, uint8."""
    return np.ascontiguousarray(import_evaluator().mask.decode(dict(packed)))


def join_truth(truths: Iterable[ImageTruth], *, classes: Sequence[str], category_ids: Sequence[int]) -> dict[str, Any]:
    """A COCO data set of what is known of images."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for truth in truths:
        images.append(dict(truth.image))
        for annotation in truth.annotations:
            annotations.append({**annotation, "id": len(annotations) + 1, "image_id": truth.image["id"]})
    categories = [{"id": number, "name": name} for number, name in zip(category_ids, classes, strict=True)]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def score(truth: dict[str, Any], results: Sequence[Record], *, has_masks: bool) -> CocoScores:
    """What COCO results are worth beside a COCO data set."""
    numbers: dict[str, float] = {}
    by_class: dict[str, list[float | None]] = {}
    for kind in ("box", "mask") if has_masks else ("box",):
        found, average = _score_kind(truth, results, kind=kind)
        numbers |= {f"{kind}_{name}": value for name, value in found}
        by_class[kind] = average
    return CocoScores(numbers, by_class)


def _score_kind(
    truth: dict[str, Any], results: Sequence[Record], *, kind: str
) -> tuple[list[tuple[str, float]], list[float | None]]:
    package = import_evaluator()
    known = package.COCO({**truth, "annotations": [dict(one) for one in truth["annotations"]]})
    # The area of an answer is that of what is compared, so that each kind gets its own part alone.
    part = _KINDS[kind].replace("segm", "segmentation")
    answered = known.loadRes([{**_named(one), part: one[part]} for one in results])
    judge = package.COCOeval_faster(known, answered, iouType=_KINDS[kind], print_function=lambda *_: None)
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    numbers = [
        (name, 100.0 * float(value))
        for name, value in zip(NUMBERS, judge.stats[: len(NUMBERS)], strict=True)
        if value >= 0
    ]
    order = {number: place for place, number in enumerate(judge.params.catIds)}
    precision = judge.eval["precision"][:, :, :, 0, -1]  # of all areas and 100 answers: [overlaps, recalls, classes]
    return numbers, [_mean(precision[:, :, order[one["id"]]]) for one in truth["categories"]]


def _named(result: Record) -> dict[str, Any]:
    return {name: result[name] for name in ("image_id", "category_id", "score")}


def _mean(precision: np.ndarray) -> float | None:
    """The average precision in percent; None where there is no such object."""
    known = precision[precision > -1]
    return 100.0 * float(known.mean()) if known.size else None


def measures_in(numbers: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The numbers, those of boxes and masks by turns; the first is there even where no object is known."""
    yield "box_ap", numbers.get("box_ap", 0.0)
    for name in NUMBERS:
        for kind in _KINDS:
            if (key := f"{kind}_{name}") in numbers and key != "box_ap":
                yield key, numbers[key]
