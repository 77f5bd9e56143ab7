"""Objects of an image in its own pixels: what a detector found, or what is known; masks as run lengths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchvision.models.detection.roi_heads import paste_masks_in_image

from vitrail.data.decode import open_image
from vitrail.data.dense.contract import DetectionSet, Objects
from vitrail.heads.mask_rcnn import Detections
from vitrail.tasks.detect.coco_measures import ImageTruth, Record, encode_mask

_INSIDE = 0.5  # probability from which on a pixel is of the object


@dataclass(frozen=True)
class FoundObject:
    """One object."""

    label: int  # its class, from 0
    box: tuple[float, ...]  # left, top, right, bottom in pixels
    score: float = 1.0  # probability of the class
    mask: Record | None = None  # run lengths over the whole image, as COCO has them
    is_crowd: bool = False

    def result(self, *, image_id: int, category_ids: Sequence[int | None]) -> dict[str, Any]:
        """The object as a COCO result: boxes are left, top, width and height there."""
        left, top, right, bottom = self.box
        found = {
            "image_id": image_id,
            "category_id": category_ids[self.label],
            "bbox": [left, top, right - left, bottom - top],
            "score": self.score,
        }
        return found if self.mask is None else {**found, "segmentation": dict(self.mask)}


@torch.no_grad()
def to_found(
    detections: Detections, *, shown: tuple[int, int], size: tuple[int, int], least: float = 0.0
) -> tuple[FoundObject, ...]:
    """Detections in an image that was shown at one height and width and has another.

    Masks are pasted into the image one at a time, and only their run lengths are kept: memory is that of one mask.
    """
    boxes = detections.boxes.float().cpu() * torch.tensor([size[1] / shown[1], size[0] / shown[0]] * 2)
    masks = None if detections.masks is None else detections.masks.float().cpu()
    kept = zip(detections.labels.tolist(), boxes.tolist(), detections.scores.tolist(), strict=True)
    return tuple(
        FoundObject(label, tuple(box), score, None if masks is None else _paste(masks[place], boxes[place], size))
        for place, (label, box, score) in enumerate(kept)
        if score >= least
    )


def _paste(mask: torch.Tensor, box: torch.Tensor, size: tuple[int, int]) -> dict[str, Any]:
    pasted = paste_masks_in_image(mask[None, None], box[None], size)[0, 0]
    return encode_mask((pasted > _INSIDE).to(torch.uint8).numpy())


def image_size(dataset: DetectionSet, index: int) -> tuple[int, int]:
    """Height and width of an image, as its annotations say or as it is."""
    said = dataset.size(index)
    if said is not None:
        return said
    image = open_image(dataset.read(index))
    return image.height, image.width


def known_objects(objects: Objects) -> tuple[FoundObject, ...]:
    """The objects that a data set knows of an image."""
    masks = [None] * len(objects.labels) if objects.masks is None else objects.masks
    rows = zip(objects.labels, objects.boxes, masks, objects.is_crowd, strict=True)
    return tuple(
        FoundObject(int(label), tuple(map(float, box)), 1.0, None if mask is None else encode_mask(mask), bool(crowd))
        for label, box, mask, crowd in rows
    )


def read_truth(dataset: DetectionSet, index: int, *, category_ids: Sequence[int]) -> ImageTruth:
    """What is known of an image, as COCO writes it down."""
    height, width = image_size(dataset, index)
    objects = dataset.read_objects(index)
    image = {"id": dataset.image_id(index), "height": height, "width": width}
    return ImageTruth(image, tuple(_annotations(objects, category_ids=category_ids)))


def objects_of(truth: ImageTruth, *, category_ids: Sequence[int]) -> tuple[FoundObject, ...]:
    """The objects that COCO's form of the truth names."""
    found = []
    for one in truth.annotations:
        left, top, width, height = one["bbox"]
        label = list(category_ids).index(one["category_id"])
        box = (left, top, left + width, top + height)
        found.append(FoundObject(label, box, 1.0, one.get("segmentation"), bool(one["iscrowd"])))
    return tuple(found)


def _annotations(objects: Objects, *, category_ids: Sequence[int]) -> Iterator[Record]:
    for known, area in zip(known_objects(objects), objects.areas, strict=True):
        found = known.result(image_id=0, category_ids=category_ids)
        yield {**found, "area": float(area), "iscrowd": int(known.is_crowd)}


def count_errors(found: Sequence[FoundObject], known: Sequence[FoundObject], *, least: float = 0.5) -> float:
    """Objects that were missed and answers that are none, at an overlap of half, over the objects and answers.

    Answers below a probability do not count, nor do those on a crowd.
    """
    answers = [one for one in found if one.score >= least]
    wanted = [one for one in known if not one.is_crowd]
    crowds = [one for one in known if one.is_crowd]
    taken: set[int] = set()
    num_wrong = 0
    for answer in sorted(answers, key=lambda one: -one.score):
        overlaps = [
            (overlap(answer.box, one.box), place)
            for place, one in enumerate(wanted)
            if place not in taken and one.label == answer.label
        ]
        best, place = max(overlaps, default=(0.0, -1))
        if best >= 0.5:
            taken.add(place)
        elif not any(overlap(answer.box, crowd.box) > 0.0 for crowd in crowds):
            num_wrong += 1
    return (num_wrong + len(wanted) - len(taken)) / max(1, len(answers) + len(wanted))


def count_confusions(
    found: Sequence[FoundObject], known: Sequence[FoundObject], *, num_classes: int, least: float = 0.5
) -> np.ndarray:
    """What was taken for what at an overlap of half: int64 [classes + 1, classes + 1].

    Rows are the classes of the objects, columns those of the answers; the last row counts answers where there is no
    object, the last column objects that were missed. The most probable answers choose first among the objects of their
    own class; answers that are left then take objects of another. Answers below a probability do not count, nor do
    those on a crowd.
    """
    counts = np.zeros((num_classes + 1, num_classes + 1), dtype=np.int64)
    answers = sorted((one for one in found if one.score >= least), key=lambda one: -one.score)
    wanted = [one for one in known if not one.is_crowd]
    crowds = [one for one in known if one.is_crowd]
    for is_same in (True, False):
        left: list[FoundObject] = []
        for answer in answers:
            overlaps = [
                (overlap(answer.box, one.box), place)
                for place, one in enumerate(wanted)
                if (one.label == answer.label) == is_same
            ]
            best, place = max(overlaps, default=(0.0, -1))
            if best >= 0.5:
                counts[wanted.pop(place).label, answer.label] += 1
            else:
                left.append(answer)
        answers = left
    for answer in answers:
        if not any(overlap(answer.box, crowd.box) > 0.0 for crowd in crowds):
            counts[num_classes, answer.label] += 1
    for one in wanted:
        counts[one.label, num_classes] += 1
    return counts


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return both / max(areas[0] + areas[1] - both, np.finfo(np.float64).tiny)
