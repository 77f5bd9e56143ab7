"""COCO's numbers against pycocotools, on objects with all that can be odd about them."""

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vitrail.tasks.detect.asking import ImageAnswer
from vitrail.tasks.detect.coco_measures import (
    NUMBERS,
    CocoScores,
    ImageTruth,
    decode_mask,
    encode_mask,
    join_truth,
    measures_in,
    score,
)
from vitrail.tasks.detect.evaluator import Part, merge_parts
from vitrail.tasks.detect.found_objects import FoundObject, count_confusions, count_errors

CLASSES, IDS = ("cat", "dog", "bird"), (3, 17, 44)  # of the last there is no object


def make(seed: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A COCO data set of twelve images, with crowds, an image without objects, and moved boxes for answers."""
    generator = np.random.default_rng(seed)
    truths, results = [], []
    for number in range(12):
        annotations = []
        for place in range(0 if number == 5 else int(generator.integers(1, 6))):
            left, top = generator.uniform(0, 150, 2)
            width, height = generator.uniform(8, 130, 2)
            mask = np.zeros((240, 320), dtype=np.uint8)
            mask[int(top) : int(top + height), int(left) : int(left + width)] = 1
            known = FoundObject(place % 2, (left, top, left + width, top + height), 1.0, encode_mask(mask))
            record = known.result(image_id=0, category_ids=IDS)
            annotations.append({**record, "area": float(mask.sum()), "iscrowd": int(place == 4)})
            moved = np.roll(mask, int(generator.integers(0, 12)), axis=1)
            shift = generator.normal(0, 6, 4)
            box = (left + shift[0], top + shift[1], left + width + shift[2], top + height + shift[3])
            answer = FoundObject(int(generator.integers(0, 2)), box, float(generator.uniform()), encode_mask(moved))
            results.append(answer.result(image_id=100 + number, category_ids=IDS))
        image = {"id": 100 + number, "height": 240, "width": 320}
        truths.append(ImageTruth(image, tuple(annotations)))
    return join_truth(truths, classes=CLASSES, category_ids=IDS), results


def by_pycocotools(truth: dict[str, Any], results: list[dict[str, Any]], kind: str) -> list[float]:
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        part = {"bbox": "bbox", "segm": "segmentation"}[kind]
        names = ("image_id", "category_id", "score", part)
        judge = COCOeval(known, known.loadRes([{name: one[name] for name in names} for one in results]), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return [100.0 * value for value in judge.stats]


def test_all_numbers_are_those_of_pycocotools() -> None:
    truth, results = make()
    found = score(truth, results, has_masks=True)
    for kind, theirs in (("box", "bbox"), ("mask", "segm")):
        wanted = by_pycocotools(*make(), theirs)
        assert [found.numbers[f"{kind}_{name}"] for name in NUMBERS] == pytest.approx(wanted, abs=1e-9)
        known = [value for value in found.by_class[kind] if value is not None]
        assert found.by_class[kind][2] is None
        assert np.mean(known) == pytest.approx(wanted[0], abs=1e-9)
    assert [key for key, _ in measures_in(found.numbers)][:3] == ["box_ap", "mask_ap", "box_ap50"]


def test_no_answers_are_worth_nothing() -> None:
    truth, _ = make()
    found = score(truth, [], has_masks=True).numbers
    assert found["box_ap"] == found["mask_ap"] == 0.0


def test_numbers_of_sizes_that_no_object_has_are_left_out() -> None:
    truth, results = make()
    for annotation in truth["annotations"]:
        annotation["area"] = 5000.0
    found = score(truth, results, has_masks=False).numbers
    assert "box_ap_medium" in found
    assert not {"box_ap_small", "box_ap_large", "mask_ap"} & set(found)


def test_masks_are_encoded_as_pycocotools_does() -> None:
    mask = np.random.default_rng(0).integers(0, 2, (37, 21)).astype(np.uint8)
    packed = encode_mask(mask)
    wanted = coco_masks.encode(np.asfortranarray(mask))
    assert (packed["size"], packed["counts"]) == (list(wanted["size"]), wanted["counts"].decode())
    assert np.array_equal(decode_mask(packed), mask)


def test_errors_are_objects_missed_and_answers_that_are_none() -> None:
    known = [
        FoundObject(0, (0, 0, 10, 10)),
        FoundObject(1, (20, 20, 30, 30)),
        FoundObject(0, (50, 0, 90, 40), is_crowd=True),
    ]
    right = FoundObject(0, (0, 0, 10, 9), 0.9)
    assert count_errors([right], known) == pytest.approx(1 / 3)  # one of two is missed
    assert count_errors([right, FoundObject(1, (21, 20, 30, 30), 0.8)], known) == 0.0
    twice = [right, FoundObject(0, (0, 0, 10, 10), 0.8), FoundObject(0, (60, 5, 70, 15), 0.8)]  # the last: in the crowd
    assert count_errors(twice, known) == pytest.approx(2 / 5)
    assert count_errors([FoundObject(0, (0, 0, 10, 10), 0.3)], known) == 1.0  # not sure enough to count


def test_confusions_are_counted_by_hand() -> None:
    """The surest choose first, among their own class first; crowds excuse answers and are not missed."""
    known = [
        FoundObject(0, (0, 0, 10, 10)),  # found, and once more
        FoundObject(1, (20, 0, 30, 10)),  # taken for class 0
        FoundObject(2, (40, 0, 50, 10)),  # missed: what is near overlaps by less than half
        FoundObject(0, (60, 0, 80, 20), is_crowd=True),
    ]
    found = [
        FoundObject(0, (0, 0, 10, 9), 0.9),
        FoundObject(0, (0, 1, 10, 10), 0.8),  # a second answer for one object is invented
        FoundObject(0, (20, 0, 30, 10), 0.7),
        FoundObject(2, (46, 0, 56, 10), 0.95),
        FoundObject(1, (65, 5, 70, 15), 0.9),  # in the crowd
        FoundObject(2, (40, 0, 50, 10), 0.4),  # not sure enough to count
    ]
    counts = count_confusions(found, known, num_classes=3)
    assert counts.tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]]
    assert count_confusions([], [], num_classes=1).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("num_processes", [2, 3, 5, 12])
def test_any_division_into_processes_gives_the_numbers_of_one(num_processes: int) -> None:
    """Exactly, also where answers of several images are equally probable, whose order then counts."""
    generator = np.random.default_rng(num_processes)
    truth, results = make()
    answers, known = [], {}
    for place, image in enumerate(truth["images"]):
        own = [one for one in results if one["image_id"] == image["id"]]
        found = tuple(
            FoundObject(
                IDS.index(one["category_id"]),
                (*one["bbox"][:2], one["bbox"][0] + one["bbox"][2], one["bbox"][1] + one["bbox"][3]),
                round(one["score"], 1),
                one["segmentation"],
            )
            for one in own
        )
        answers.append(ImageAnswer(place, (240, 320), found))
        annotations = tuple(one for one in truth["annotations"] if one["image_id"] == image["id"])
        known[place] = ImageTruth(image, annotations)

    def measure(parts: list[Part]) -> CocoScores:
        merged, truths = merge_parts(parts)
        assert [answer.place for answer in merged] == list(range(12))
        told = [
            one.result(image_id=100 + answer.place, category_ids=IDS) for answer in merged for one in answer.objects
        ]
        joined = join_truth((truths[answer.place] for answer in merged), classes=CLASSES, category_ids=IDS)
        return score(joined, told, has_masks=True)

    whole = measure([(answers, known)])
    owners = generator.permutation(np.arange(12) % num_processes)
    parts: list[Part] = []
    for process in generator.permutation(num_processes):
        places = generator.permutation(np.flatnonzero(owners == process)).tolist()
        parts.append(([answers[place] for place in places], {place: known[place] for place in places}))
    assert measure(parts) == whole
    assert whole.numbers["box_ap"] > 0.0
