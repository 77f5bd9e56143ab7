"""Images that are learnt from without labels, and the labels that some of them have, which measures alone read."""

from dataclasses import dataclass
from typing import Any

from vitrail.data.contract import Dataset, Level
from vitrail.data.datasets import open_source
from vitrail.settings.data import DataSettings, OpenedSplits

_FEWEST = 2  # images that can be told from each other


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

    def find_labels(self) -> tuple[Level, Level] | None:
        """Labels of train and of val that tell the same classes apart, for measures; None where there are none."""
        if not self.train.levels or not self.val.levels or not self.num_val:
            return None
        train, val = self.train.level(self.level), self.val.level(self.level)
        return (train, val) if train.classes == val.classes and len(train.classes) > 1 else None

    def locate(self, index: int) -> str:
        """Where a training image is."""
        return self.train.locate(index)

    def remark(self) -> str:
        """One line that says what is learnt from, and what labels are used for."""
        labels = self.find_labels()
        told = f"learning from {self.num_train:,} images of {self.train.name} without labels"
        if not self.num_val:
            return f"{told}; data.val=none: nothing is measured"
        told += f", measured on {self.num_val:,}{' that are held out' if self.is_held_out else ''}"
        if labels is None:
            return f"{told}; there are no labels to measure with"
        return f"{told}; the labels of {len(labels[0].classes):,} classes are read by measures alone"

    def describe(self) -> dict[str, Any]:
        """What task.json says of the data."""
        return {"num_train": self.num_train, "num_val": self.num_val}


def open_unlabelled(settings: DataSettings) -> UnlabelledData:
    """Both splits, without the samples in quarantine: of class folders, a manifest or a flat folder of images.

    Where images lie beside folders, the folders are no classes, and all images count.
    """
    try:
        opened = settings.open_splits(labels="optional")
        if any(note.problem == "stray images" for note in opened.notes) or (opened.is_held_out and not opened.val):
            opened = settings.open_splits(labels="ignored")
    except ValueError:
        check_several(settings)
        raise
    if len(opened.train) < _FEWEST:
        check_several(settings)
    return UnlabelledData(opened.train, opened.val, _choose_level(settings, opened), opened.is_held_out)


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
