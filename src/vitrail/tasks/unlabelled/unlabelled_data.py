"""Images that are learnt from without labels, and the labels that some of them have, which measures alone read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.contract import Dataset, Level
from vitrail.data.datasets import open_source
from vitrail.data.decode import BrokenImageError, open_image
from vitrail.data.dense.mask_pairs import find_pair_folders, has_masks
from vitrail.data.draws import Draws
from vitrail.settings.data import DataSettings, OpenedSplits

_FEWEST = 2  # images that can be told from each other
_NUM_SIZED = 64  # images whose size is looked at


@dataclass(frozen=True, eq=False)
class UnlabelledData:
    """Images that a run is trained and measured on."""

    train: Dataset
    val: Dataset
    level: str | None  # the name of the labels that measures read; None: the first, where there are any
    is_held_out: bool = False  # whether val was taken from train, since there was none

    @property
    def num_train(self) -> int:
        """How many training images there are."""
        return len(self.train)

    @property
    def num_val(self) -> int:
        """How many images there are to measure on."""
        return len(self.val)

    @property
    def val_labels(self) -> Level | None:
        """Labels of val that measures can read: of two classes or more, some of them known."""
        return find_labels(self.val, self.level)

    @property
    def train_labels(self) -> Level | None:
        """Labels of train, where they tell the classes of val apart."""
        own, others = find_labels(self.train, self.level), self.val_labels
        if own is None or others is None or own.classes != others.classes or own.is_multiple != others.is_multiple:
            return None
        return own

    def locate(self, index: int) -> str:
        """Where a training image is."""
        return self.train.locate(index)

    def remark(self) -> str:
        """One line that says what is learnt from, and what labels are used for."""
        told = f"learning from {self.num_train:,} images of {self.train.name} without labels"
        if not self.num_val:
            return f"{told}; data.val=none: nothing is measured"
        told += f", measured on {self.num_val:,}{' that are held out' if self.is_held_out else ''}"
        if self.val_labels is None:
            return f"{told}; there are no labels to measure with"
        whose = "labels" if self.train_labels is not None else "labels of val"
        return f"{told}; the {whose}, of {len(self.val_labels.classes):,} classes, are read by measures alone"

    def describe(self) -> dict[str, Any]:
        """What task.json says of the data."""
        return {"num_train": self.num_train, "num_val": self.num_val}


def open_unlabelled(settings: DataSettings) -> UnlabelledData:
    """Both splits, without the samples in quarantine: of class folders, a manifest or a flat folder of images.

    Where images lie beside folders, or every folder has one image, the folders are no classes, and all images count.
    """
    try:
        opened = settings.open_splits(labels="optional")
        has_classes = not any(note.problem == "stray images" for note in opened.notes)
    except ValueError:  # one image a class leaves nothing for val
        check_several(settings)
        has_classes = False
    if not has_classes:
        opened = settings.open_splits(labels="ignored")
    if len(opened.train) < _FEWEST:
        check_several(settings)
        remedy = ", or add data.val=none to learn from all" if opened.is_held_out else ""
        raise ValueError(
            f"{opened.train.name} has one image to train on: learning without labels tells images apart, give it "
            f"many{remedy}"
        )
    return UnlabelledData(opened.train, opened.val, _choose_level(settings, opened), opened.is_held_out)


def find_labels(data: Dataset, level: str | None) -> Level | None:
    """Labels that tell some images of the data apart."""
    if not data.levels or not len(data):
        return None
    labels = data.level(level)
    is_known = is_labelled(labels)
    return labels if len(labels.classes) > 1 and int(is_known.sum()) >= _FEWEST else None


def is_labelled(labels: Level) -> np.ndarray:
    """Which images have a label, bool; where they may have several, all."""
    return np.ones(len(labels.labels), dtype=bool) if labels.is_multiple else labels.labels >= 0


def check_several(settings: DataSettings) -> None:
    """Refuse data of one image, which there is nothing to tell from."""
    if settings.spec is None:
        return
    source = open_source(settings.spec, val_share=0.0, labels="ignored")
    if sum(len(source.open(split)) for split in source.splits) < _FEWEST:
        raise ValueError(f"{source.name} has one image: learning without labels tells images apart, give it many")


def _choose_level(settings: DataSettings, opened: OpenedSplits) -> str | None:
    """The level that the settings ask for, where both splits have labels."""
    if settings.level is None or not (opened.train.levels and opened.val.levels):
        return None
    opened.train.level(settings.level)  # one that is not there is told here
    return settings.level


def remark_masks(settings: DataSettings) -> str | None:
    """One line where a folder has masks beside its images, which would be learnt from as if they were photos."""
    root = Path(settings.spec or "").expanduser()
    if settings.spec is None or not root.is_dir() or not has_masks(root):
        return None
    pair = next(iter(find_pair_folders(root).values()))
    images = "images" if pair.images.startswith("images/") else pair.images
    return (
        f"warning: {root / pair.masks} looks like masks of {root / pair.images}, and is learnt from as if it were "
        f"photos: give data={root / images} to leave them out"
    )


def remark_sizes(data: Dataset, crop: int) -> str | None:
    """One line where most images, by the headers of a few, are smaller than what is cut out of them."""
    places = Draws("sizes").array().permutation(len(data))[:_NUM_SIZED]
    sides = []
    for place in places.tolist():
        try:
            image = open_image(data.read(place))
        except (BrokenImageError, OSError):  # the run tells of it when it comes to it
            continue
        sides.append(min(image.height, image.width))
    num_smaller = sum(side < crop for side in sides)
    if num_smaller <= len(sides) / 2:
        return None
    return (
        f"crops of {crop} px are larger than {num_smaller} of {len(sides)} images looked at (the middle one has "
        f"{sorted(sides)[len(sides) // 2]} px): they are enlarged; a smaller image_size is faster and loses nothing"
    )
