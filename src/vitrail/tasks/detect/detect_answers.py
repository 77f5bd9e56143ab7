"""What a detector says about single files, and the pictures and files that it leaves of that."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.contract import Dataset
from vitrail.data.decode import open_image
from vitrail.data.dense.contract import DetectionSet, WindowedObjects
from vitrail.data.dense.palette import make_colours
from vitrail.data.dense.samples import ObjectSamples
from vitrail.data.loader import Loader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.heads.mask_rcnn import Detector
from vitrail.inference.folding import as_folded
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.settings.dense import FitSettings
from vitrail.storage import write_json, write_text
from vitrail.tasks.detect.asking import ask
from vitrail.tasks.detect.coco_measures import decode_mask
from vitrail.tasks.detect.drawing import draw_objects, write_picture
from vitrail.tasks.detect.evaluator import SURE
from vitrail.tasks.detect.found_objects import FoundObject
from vitrail.tasks.results import Answer

OVERLAYS, LABELS, COCO_FILE, NAMES_FILE = "overlays", "labels", "coco.json", "classes.txt"


@dataclass(frozen=True)
class ObjectsAnswer(Answer):
    """The objects of an image, the most probable first."""

    place: str
    index: int  # place of the image in the data
    size: tuple[int, int]  # its height and width
    objects: tuple[FoundObject, ...]
    classes: tuple[str, ...]
    top: int  # objects that are told in a line
    least_drawn: float = SURE  # probability from which on objects are drawn

    def record(self) -> dict[str, Any]:
        """The path, the size and all objects: boxes are left, top, right and bottom, masks COCO's run lengths."""
        return {
            "path": self.place,
            "height": self.size[0],
            "width": self.size[1],
            "objects": [
                {
                    "class": self.classes[one.label],
                    "probability": round(one.score, 6),
                    "box": [round(value, 2) for value in one.box],
                    **({} if one.mask is None else {"mask": dict(one.mask)}),
                }
                for one in self.objects
            ],
        }

    def above(self, threshold: float) -> "ObjectsAnswer":
        """The objects of at least that probability, all of which are drawn."""
        kept = tuple(one for one in self.objects if one.score >= threshold)
        return replace(self, objects=kept, least_drawn=threshold)

    def cells(self) -> dict[str, str]:
        """The path, the number of objects, and those that a line tells."""
        return {"path": self.place, "objects": str(len(self.objects)), "found": "; ".join(self._told())}

    def __str__(self) -> str:
        rest = len(self.objects) - self.top
        more = [f"and {rest} more"] if rest > 0 else []
        return "  ".join([self.place, *(list(self._told()) or ["nothing"]), *more])

    def _told(self) -> Iterator[str]:
        for one in self.objects[: self.top]:
            left, top, right, bottom = (round(value) for value in one.box)
            yield f"{self.classes[one.label]} {one.score:.1%} ({left}, {top}, {right}, {bottom})"


class Unmarked(DetectionSet):
    """Images of which no objects are known, as a detector reads them."""

    def __init__(self, images: Dataset) -> None:
        self.images, self.name, self.split = images, images.name, images.split
        self.levels = {}

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes | np.ndarray:
        """The image as it is stored."""
        return self.images.read(index)

    def locate(self, index: int) -> str:
        """Where the image is."""
        return self.images.locate(index)

    def read_windows(self, index: int, size: tuple[int, int]) -> WindowedObjects:
        """No objects."""
        return WindowedObjects(
            boxes=np.zeros((0, 4), dtype=np.float32),
            labels=np.zeros(0, dtype=np.int64),
            windows=None,
            is_crowd=np.zeros(0, dtype=bool),
            areas=np.zeros(0, dtype=np.float32),
        )

    def image_id(self, index: int) -> int:
        """The image's place, from 1."""
        return index + 1


def answer_with_objects(
    trained: Trained, data: Dataset, *, passes: Passes, top: int, note_unread: Callable[[Problem], object]
) -> Iterator[ObjectsAnswer]:
    """The objects of each image that can be read, in the order of the data."""
    assert isinstance(trained.model, Detector)
    settings = trained.model.config.head
    loader = Loader(
        Unmarked(data),
        make=ObjectSamples(FitSettings(short_side=settings.short_side, max_side=settings.max_side).build()),
        sampler=passes.make_sampler(len(data)),
        num_workers=passes.workers,
        quarantine=NotingQuarantine(note_unread),
        pin_memory=passes.device.type == "cuda",
    )
    model = as_folded(trained.model).to(passes.device)
    found = ask(model, loader.epoch(0), normalize=trained.normalize, device=passes.device, dtype=passes.dtype)
    for answer in found:
        yield ObjectsAnswer(
            data.locate(answer.place), answer.place, answer.size, answer.objects, trained.class_names, top
        )


def draw_found(answer: Answer, *, trained: Trained, pixels: np.ndarray) -> Image.Image:
    """The objects of an answer that the detector is sure of, over the image, uint8 [3, height, width]."""
    assert isinstance(answer, ObjectsAnswer)
    names = trained.class_names
    sure = tuple(one for one in answer.objects if one.score >= answer.least_drawn)
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return draw_objects(image, sure, classes=names, colours=make_colours(len(names)))


def keep_objects(
    answers: Iterator[Answer], *, trained: Trained, data: Dataset, folder: Path
) -> Iterator[ObjectsAnswer]:
    """The answers as they come; of each a picture and a file of YOLO's text is left, and of all a COCO file."""
    names = trained.class_names
    ids = trained.description.get("category_ids") or range(1, len(names) + 1)
    for part in (OVERLAYS, LABELS):
        (folder / part).mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    taken: set[str] = set()
    for answer in answers:
        assert isinstance(answer, ObjectsAnswer)
        stem = _unique(Path(answer.place).stem, taken)
        pixels = open_image(data.read(answer.index)).pixels().numpy()
        write_picture(folder / OVERLAYS / f"{stem}.png", draw_found(answer, trained=trained, pixels=pixels))
        write_text(folder / LABELS / f"{stem}.txt", "".join(_yolo_lines(answer)))
        number = len(images) + 1
        height, width = answer.size
        images.append({"id": number, "file_name": answer.place, "height": height, "width": width})
        for one in answer.objects:
            found = one.result(image_id=number, category_ids=ids)
            area = found["bbox"][2] * found["bbox"][3] if one.mask is None else int(decode_mask(one.mask).sum())
            annotations.append({**found, "id": len(annotations) + 1, "area": area, "iscrowd": 0})
        yield answer
    categories = [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]
    write_json(folder / COCO_FILE, {"images": images, "annotations": annotations, "categories": categories})
    write_text(folder / NAMES_FILE, "".join(f"{name}\n" for name in names))


def _yolo_lines(answer: ObjectsAnswer) -> Iterator[str]:
    """A line for each object: class, centre, width and height of the box as parts of the image, and probability."""
    height, width = answer.size
    for one in answer.objects:
        left, top, right, bottom = one.box
        centre = (left + right) / 2 / width, (top + bottom) / 2 / height
        numbers = (*centre, (right - left) / width, (bottom - top) / height, one.score)
        yield f"{one.label} {' '.join(f'{number:.6f}' for number in numbers)}\n"


def _unique(stem: str, taken: set[str]) -> str:
    """A name for files that no other image has taken."""
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name
