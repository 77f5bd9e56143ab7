"""What a segmentation model says about single files, and the masks and overlays that it leaves of that."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.contract import Dataset
from vitrail.data.decode import open_image
from vitrail.data.dense.contract import IGNORED, MaskBatch, SegmentationSet
from vitrail.data.dense.palette import make_colours
from vitrail.data.dense.samples import MaskSamples
from vitrail.data.loader import Loader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.evaluation.segmenting import Segmenter, segment
from vitrail.inference.folding import as_folded
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.storage import write_text, write_whole
from vitrail.tasks.results import Answer
from vitrail.tasks.segment.looking_notes import read_looking
from vitrail.tasks.segment.mask_drawing import draw_mask, draw_overlay

MASKS, OVERLAYS, NAMES_FILE = "masks", "overlays", "classes.txt"
_MOST_TOGETHER = 4  # whole images at a time


@dataclass(frozen=True)
class MaskAnswer(Answer):
    """The mask of an image, and how much of it each class fills, the most first."""

    place: str
    index: int  # place of the image in the data
    mask: np.ndarray = field(repr=False)  # uint8 [height, width]
    classes: tuple[str, ...]
    top: int  # classes that are told in a line

    @property
    def shares(self) -> dict[str, float]:
        """Classes that are there, and the share of the image that each fills."""
        counts = np.bincount(self.mask.reshape(-1), minlength=len(self.classes))
        order = np.argsort(-counts, kind="stable")
        return {self.classes[place]: float(counts[place] / self.mask.size) for place in order if counts[place]}

    def record(self) -> dict[str, Any]:
        """The path, the size, and the share of each class; the mask itself is left by `--out`."""
        height, width = self.mask.shape
        shares = [{"class": name, "share": round(share, 6)} for name, share in self.shares.items()]
        return {"path": self.place, "height": height, "width": width, "classes": shares}

    def cells(self) -> dict[str, str]:
        """The path, then a class and its share by turns; as many columns for every image."""
        cells, shares = {"path": self.place}, list(self.shares.items())
        for number in range(1, self.top + 1):
            name, share = shares[number - 1] if number <= len(shares) else ("", None)
            cells |= {f"class_{number}": name, f"share_{number}": "" if share is None else f"{share:.6f}"}
        return cells

    def __str__(self) -> str:
        shown = list(self.shares.items())[: self.top]
        return "  ".join([self.place, *(f"{name} {share:.1%}" for name, share in shown)])


class Unmasked(SegmentationSet):
    """Images of which no masks are known."""

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

    def read_mask(self, index: int) -> np.ndarray:
        """A mask of which nothing is known."""
        image = open_image(self.images.read(index))
        return np.full((image.height, image.width), IGNORED, dtype=np.uint8)


def answer_with_masks(
    trained: Trained, data: Dataset, *, passes: Passes, top: int, note_unread: Callable[[Problem], object]
) -> Iterator[MaskAnswer]:
    """The mask of each image that can be read, in the order of the data."""
    loader: Loader[MaskBatch] = Loader(
        Unmasked(data),
        make=MaskSamples(),
        sampler=passes.make_sampler(len(data), batch_size=min(passes.batch_size, _MOST_TOGETHER)),
        num_workers=passes.workers,
        quarantine=NotingQuarantine(note_unread),
        pin_memory=passes.device.type == "cuda",
    )
    model = as_folded(trained.model).to(passes.device)
    names = trained.class_names
    segmenter = Segmenter(
        model,
        read_looking(trained.description),
        normalize=trained.normalize,
        device=passes.device,
        dtype=passes.dtype,
    )
    for answers, batch in segment(segmenter, loader.epoch(0)):
        assert isinstance(batch, MaskBatch)
        for place, answer in enumerate(answers):
            index = int(batch.indices[place])
            yield MaskAnswer(data.locate(index), index, answer.numpy(), names, min(top, len(names)))


def keep_masks(answers: Iterator[Answer], *, trained: Trained, data: Dataset, folder: Path) -> Iterator[MaskAnswer]:
    """The answers as they come; of each a mask of class indices with a palette and an overlay are left."""
    names = trained.class_names
    for part in (MASKS, OVERLAYS):
        (folder / part).mkdir(parents=True, exist_ok=True)
    write_text(folder / NAMES_FILE, "".join(f"{name}\n" for name in names))
    taken: set[str] = set()
    for answer in answers:
        assert isinstance(answer, MaskAnswer)
        stem = _unique(Path(answer.place).stem, taken)
        pixels = open_image(data.read(answer.index)).pixels().numpy()
        drawn = draw_masks(answer, trained=trained, pixels=pixels)
        for part, picture in ((MASKS, drawn["mask"]), (OVERLAYS, drawn["overlay"])):
            write_whole(folder / part / f"{stem}.png", lambda file, one=picture: one.save(file, "png"))  # type: ignore[misc]
        yield answer


def draw_masks(answer: Answer, *, trained: Trained, pixels: np.ndarray) -> dict[str, Image.Image]:
    """The mask of an answer with a palette, and its colours over the image, uint8 [3, height, width]."""
    assert isinstance(answer, MaskAnswer)
    colours = trained.description.get("colours") or make_colours(len(trained.class_names))
    return {"mask": draw_mask(answer.mask, colours), "overlay": draw_overlay(pixels, answer.mask, colours)}


def _unique(stem: str, taken: set[str]) -> str:
    """A name for files that no other image has taken."""
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name
